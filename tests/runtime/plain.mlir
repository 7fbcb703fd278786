// Functions that show how arrays cross the boundary.
util.global private @scale = #flow.parameter.named<"model"::"scale"> : tensor<4xf32>

func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %b : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// Doubles the first; the others come back as they are.
func.func @types(%a: tensor<4xbf16>, %b: tensor<?x4xi1>, %c: i32, %d: tensor<2xf8E4M3FN>)
    -> (tensor<4xbf16>, tensor<?x4xi1>, i32, tensor<2xf8E4M3FN>) {
  %0 = arith.addf %a, %a : tensor<4xbf16>
  return %0, %b, %c, %d : tensor<4xbf16>, tensor<?x4xi1>, i32, tensor<2xf8E4M3FN>
}

// The manifest gives a rank-0 tensor and a number one type: both ways in one function.
func.func @rank0(%a: tensor<f32>, %b: f32) -> tensor<f32> {
  %t = tensor.from_elements %b : tensor<f32>
  %0 = arith.subf %a, %t : tensor<f32>
  return %0 : tensor<f32>
}

// Updates its argument in place.
func.func @touch(%a: tensor<4xi8>) -> tensor<4xi8> {
  %c0 = arith.constant 0 : index
  %x = arith.constant 100 : i8
  %0 = tensor.insert %x into %a[%c0] : tensor<4xi8>
  return %0 : tensor<4xi8>
}

func.func @weighted(%a: tensor<4xf32>) -> tensor<4xf32> {
  %w = util.global.load @scale : tensor<4xf32>
  %0 = arith.mulf %a, %w : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// A sum whose order would show in its last bits.
func.func @mixed(%a: tensor<4096xf32>) -> tensor<f32> {
  %zero = arith.constant 0.0 : f32
  %init = tensor.from_elements %zero : tensor<f32>
  %0 = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>],
      iterator_types = ["reduction"]} ins(%a : tensor<4096xf32>) outs(%init : tensor<f32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.addf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<f32>
  return %0 : tensor<f32>
}
