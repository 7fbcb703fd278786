// Two mutable globals with equal initial values, written and read in one call; doubled on return.
// Right: @a holds x at the position, @b holds y. IREE merges both into one buffer.
util.global private mutable @a = dense<0.0> : tensor<8xf32>
util.global private mutable @b = dense<0.0> : tensor<8xf32>
util.func public @step(%x: tensor<1xf32>, %y: tensor<1xf32>, %position: i32) -> (tensor<8xf32>, tensor<8xf32>) {
  %i = arith.index_cast %position : i32 to index
  %a0 = util.global.load @a : tensor<8xf32>
  %a1 = tensor.insert_slice %x into %a0[%i] [1] [1] : tensor<1xf32> into tensor<8xf32>
  util.global.store %a1, @a : tensor<8xf32>
  %b0 = util.global.load @b : tensor<8xf32>
  %b1 = tensor.insert_slice %y into %b0[%i] [1] [1] : tensor<1xf32> into tensor<8xf32>
  util.global.store %b1, @b : tensor<8xf32>
  %ra = arith.addf %a1, %a1 : tensor<8xf32>
  %rb = arith.addf %b1, %b1 : tensor<8xf32>
  util.return %ra, %rb : tensor<8xf32>, tensor<8xf32>
}
