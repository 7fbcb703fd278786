// A product of two to eight rows with weights as IREE's schedule for gfx950 takes it apart.
func.func @main(%a: tensor<4x128xbf16>, %b: tensor<64x128xbf16>) -> tensor<4x64xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %p = linalg.matmul indexing_maps = [
      affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>]
    ins(%a, %b : tensor<4x128xbf16>, tensor<64x128xbf16>)
    outs(%c : tensor<4x64xf32>) -> tensor<4x64xf32>
  return %p : tensor<4x64xf32>
}
