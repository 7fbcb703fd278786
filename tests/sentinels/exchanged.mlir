// Two results, each of the other argument, that take the memory of the arguments; no result may see
// what the other has written. Right: x of @step is b + 1, y is 2 a. IREE computes y from x, or x from y.
util.func public @step(%a: tensor<64xf32> {iree.abi.output = 0 : index}, %b: tensor<64xf32> {iree.abi.output = 1 : index}) -> (tensor<64xf32>, tensor<64xf32>) {
  %one = arith.constant dense<1.0> : tensor<64xf32>
  %x = arith.addf %b, %one : tensor<64xf32>
  %y = arith.addf %a, %a : tensor<64xf32>
  util.return %x, %y : tensor<64xf32>, tensor<64xf32>
}
