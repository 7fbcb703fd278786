// Two sorts that carry indices along and start from the same iota, as two layers' torch.topk do.
// Right: each returns its own argsort. IREE sorts in place, the second sort meets sorted indices.
#map = affine_map<(i, j) -> (i, j)>
func.func @both(%x: tensor<?x4xf32>, %y: tensor<?x4xf32>) -> (tensor<?x4xi64>, tensor<?x4xi64>) {
  %c0 = arith.constant 0 : index
  %rows = tensor.dim %x, %c0 : tensor<?x4xf32>
  %empty = tensor.empty(%rows) : tensor<?x4xi64>
  %iota = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel"]} outs(%empty : tensor<?x4xi64>) {
  ^bb0(%unused: i64):
    %j = linalg.index 1 : index
    %v = arith.index_cast %j : index to i64
    linalg.yield %v : i64
  } -> tensor<?x4xi64>
  %p:2 = iree_linalg_ext.sort dimension(1) outs(%x, %iota : tensor<?x4xf32>, tensor<?x4xi64>) {
  ^bb0(%a: f32, %b: f32, %i: i64, %j: i64):
    %greater = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %greater : i1
  } -> tensor<?x4xf32>, tensor<?x4xi64>
  %q:2 = iree_linalg_ext.sort dimension(1) outs(%y, %iota : tensor<?x4xf32>, tensor<?x4xi64>) {
  ^bb0(%a: f32, %b: f32, %i: i64, %j: i64):
    %greater = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %greater : i1
  } -> tensor<?x4xf32>, tensor<?x4xi64>
  return %p#1, %q#1 : tensor<?x4xi64>, tensor<?x4xi64>
}

// The control: one sort alone is right.
func.func @one(%x: tensor<?x4xf32>) -> tensor<?x4xi64> {
  %c0 = arith.constant 0 : index
  %rows = tensor.dim %x, %c0 : tensor<?x4xf32>
  %empty = tensor.empty(%rows) : tensor<?x4xi64>
  %iota = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel"]} outs(%empty : tensor<?x4xi64>) {
  ^bb0(%unused: i64):
    %j = linalg.index 1 : index
    %v = arith.index_cast %j : index to i64
    linalg.yield %v : i64
  } -> tensor<?x4xi64>
  %p:2 = iree_linalg_ext.sort dimension(1) outs(%x, %iota : tensor<?x4xf32>, tensor<?x4xi64>) {
  ^bb0(%a: f32, %b: f32, %i: i64, %j: i64):
    %greater = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %greater : i1
  } -> tensor<?x4xf32>, tensor<?x4xi64>
  return %p#1 : tensor<?x4xi64>
}
