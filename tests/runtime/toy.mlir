// A "language model" of whole numbers, small enough to predict: one kind of pages of four positions,
// longest sequence 16, vocabulary 7. hidden[t, h] = sum over j <= position of (j + 1 + h) * (token_j + 1)
// of the row's own sequence, so every token that attention sees counts;
// logits[r, v] = hidden[rows[r], 0] + v * hidden[rows[r], 1].

// The run of each row: the last one that begins at or before it.
func.func private @owners(%tokens: tensor<?xi32>, %runs: tensor<?x3xi32>) -> tensor<?xi32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %tokens, %c0 : tensor<?xi32>
  %s = tensor.dim %runs, %c0 : tensor<?x3xi32>
  %firsts = tensor.extract_slice %runs[0, 0] [%s, 1] [1, 1] : tensor<?x3xi32> to tensor<?xi32>
  %none = arith.constant -1 : i32
  %empty = tensor.empty(%n) : tensor<?xi32>
  %init = linalg.fill ins(%none : i32) outs(%empty : tensor<?xi32>) -> tensor<?xi32>
  %owners = linalg.generic {
      indexing_maps = [affine_map<(t, s) -> (s)>, affine_map<(t, s) -> (t)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%firsts : tensor<?xi32>) outs(%init : tensor<?xi32>) {
  ^bb0(%first: i32, %acc: i32):
    %t = linalg.index 0 : index
    %row = arith.index_cast %t : index to i32
    %begun = arith.cmpi sle, %first, %row : i32
    %one = arith.extui %begun : i1 to i32
    %sum = arith.addi %acc, %one : i32
    linalg.yield %sum : i32
  } -> tensor<?xi32>
  return %owners : tensor<?xi32>
}

func.func @step(%tokens: tensor<?xi32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %rows: tensor<?xi32>,
                %slots: tensor<?xi32>, %lists: tensor<?x?xi32>,
                %pool: tensor<?x1x4x1x1xf32> {iree.abi.consume}) -> (tensor<?x7xf32>, tensor<?x1x4x1x1xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %tokens, %c0 : tensor<?xi32>
  %r = tensor.dim %rows, %c0 : tensor<?xi32>
  %p = tensor.dim %lists, %c1 : tensor<?x?xi32>
  %pages = tensor.dim %pool, %c0 : tensor<?x1x4x1x1xf32>
  %reach = arith.muli %p, %c4 : index

  %values = arith.sitofp %tokens : tensor<?xi32> to tensor<?xf32>
  %updates = tensor.expand_shape %values [[0, 1]] output_shape [%n, 1] : tensor<?xf32> into tensor<?x1xf32>
  %places = tensor.expand_shape %slots [[0, 1]] output_shape [%n, 1] : tensor<?xi32> into tensor<?x1xi32>
  %flat = tensor.collapse_shape %pool [[0, 1, 2], [3, 4]] : tensor<?x1x4x1x1xf32> into tensor<?x1xf32>
  %written = iree_linalg_ext.scatter dimension_map = [0] unique_indices(true)
      ins(%updates, %places : tensor<?x1xf32>, tensor<?x1xi32>) outs(%flat : tensor<?x1xf32>) {
  ^bb0(%new: f32, %old: f32):
    iree_linalg_ext.yield %new : f32
  } -> tensor<?x1xf32>
  %kept = tensor.expand_shape %written [[0, 1, 2], [3, 4]] output_shape [%pages, 1, 4, 1, 1]
      : tensor<?x1xf32> into tensor<?x1x4x1x1xf32>

  %owners = call @owners(%tokens, %runs) : (tensor<?xi32>, tensor<?x3xi32>) -> tensor<?xi32>
  %every = tensor.empty(%reach) : tensor<?xf32>
  %empty = tensor.empty(%n) : tensor<?x2xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x2xf32>) -> tensor<?x2xf32>
  %hidden = linalg.generic {
      indexing_maps = [affine_map<(t, h, j) -> (t)>, affine_map<(t, h, j) -> (t)>,
                       affine_map<(t, h, j) -> (j)>, affine_map<(t, h, j) -> (t, h)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%owners, %positions, %every : tensor<?xi32>, tensor<?xi32>, tensor<?xf32>) outs(%init : tensor<?x2xf32>) {
  ^bb0(%owner: i32, %position: i32, %unread: f32, %acc: f32):
    %h = linalg.index 1 : index
    %j = linalg.index 2 : index
    %one = arith.constant 1.0 : f32
    %run = arith.index_cast %owner : i32 to index
    %number = arith.divui %j, %c4 : index
    %inside = arith.remui %j, %c4 : index
    %page = tensor.extract %lists[%run, %number] : tensor<?x?xi32>
    %at = arith.index_cast %page : i32 to index
    %x = tensor.extract %kept[%at, %c0, %inside, %c0, %c0] : tensor<?x1x4x1x1xf32>
    %last = arith.index_cast %position : i32 to index
    %seen = arith.cmpi ule, %j, %last : index
    %j1 = arith.addi %j, %c1 : index
    %w = arith.addi %j1, %h : index
    %wi = arith.index_cast %w : index to i32
    %wf = arith.sitofp %wi : i32 to f32
    %x1 = arith.addf %x, %one : f32
    %term = arith.mulf %x1, %wf : f32
    %term0 = arith.select %seen, %term, %zero : f32
    %sum = arith.addf %acc, %term0 : f32
    linalg.yield %sum : f32
  } -> tensor<?x2xf32>

  %out = tensor.empty(%r) : tensor<?x7xf32>
  %logits = linalg.generic {
      indexing_maps = [affine_map<(r, v) -> (r)>, affine_map<(r, v) -> (r, v)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%rows : tensor<?xi32>) outs(%out : tensor<?x7xf32>) {
  ^bb0(%row: i32, %old: f32):
    %v = linalg.index 1 : index
    %at = arith.index_cast %row : i32 to index
    %a = tensor.extract %hidden[%at, %c0] : tensor<?x2xf32>
    %b = tensor.extract %hidden[%at, %c1] : tensor<?x2xf32>
    %vi = arith.index_cast %v : index to i32
    %vf = arith.sitofp %vi : i32 to f32
    %scaled = arith.mulf %b, %vf : f32
    %sum = arith.addf %a, %scaled : f32
    linalg.yield %sum : f32
  } -> tensor<?x7xf32>
  return %logits, %kept : tensor<?x7xf32>, tensor<?x1x4x1x1xf32>
}
