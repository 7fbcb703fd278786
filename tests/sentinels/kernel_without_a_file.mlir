module {
  func.func @main(%a: tensor<64xf32> loc("a")) -> tensor<64xf32> {
    %0 = arith.addf %a, %a : tensor<64xf32> loc("x")
    return %0 : tensor<64xf32> loc("r")
  } loc("f")
} loc("m")
