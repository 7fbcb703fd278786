// The greater of two numbers, NaN where one is: `kept` compares, `dropped` is one operation.
#id = affine_map<(d0) -> (d0)>
util.func public @kept(%x: tensor<256xf32>, %y: tensor<256xf32>) -> tensor<256xf32> {
  %e = tensor.empty() : tensor<256xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
      ins(%x, %y : tensor<256xf32>, tensor<256xf32>) outs(%e : tensor<256xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %nan = arith.constant 0x7FC00000 : f32
    %n = arith.maxnumf %a, %b : f32
    %u = arith.cmpf uno, %a, %b : f32
    %m = arith.select %u, %nan, %n : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  util.return %r : tensor<256xf32>
}
util.func public @dropped(%x: tensor<256xf32>, %y: tensor<256xf32>) -> tensor<256xf32> {
  %e = tensor.empty() : tensor<256xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}
      ins(%x, %y : tensor<256xf32>, tensor<256xf32>) outs(%e : tensor<256xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.maximumf %a, %b : f32
    linalg.yield %m : f32
  } -> tensor<256xf32>
  util.return %r : tensor<256xf32>
}
