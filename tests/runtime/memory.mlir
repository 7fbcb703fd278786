// A "language model" of whole numbers that keeps all kinds of memory: pages of all positions (kind 0),
// of a window of 6 (kind 1, two heads of three), and a state. Pages have four positions, sequences 64,
// the vocabulary 7. With x = token + 1:
//   all    = sum over j <= position of (j + 1) * x_j
//   window = sum over position - 6 < j <= position of (j + 2) * x_j
//   state  = sum over j <= position of x_j * x_j
//   logits[v] = (all + v * window + (7 - v) * state) mod 1009
// What a row does not see may be NaN.
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

// sum over the positions j of a row's sequence that it sees of (j + weight) * (values + 1).
func.func private @mix(%flat: tensor<?xf32>, %lists: tensor<?x?xi32>, %owners: tensor<?xi32>,
                       %positions: tensor<?xi32>, %reach: index, %weight: index, %stride: index) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %n = tensor.dim %positions, %c0 : tensor<?xi32>
  %p = tensor.dim %lists, %c1 : tensor<?x?xi32>
  %every_position = arith.muli %p, %c4 : index
  %every = tensor.empty(%every_position) : tensor<?xf32>
  %empty = tensor.empty(%n) : tensor<?xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?xf32>) -> tensor<?xf32>
  %sums = linalg.generic {
      indexing_maps = [affine_map<(t, j) -> (t)>, affine_map<(t, j) -> (t)>,
                       affine_map<(t, j) -> (j)>, affine_map<(t, j) -> (t)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%owners, %positions, %every : tensor<?xi32>, tensor<?xi32>, tensor<?xf32>) outs(%init : tensor<?xf32>) {
  ^bb0(%owner: i32, %position: i32, %unread: f32, %acc: f32):
    %j = linalg.index 1 : index
    %run = arith.index_cast %owner : i32 to index
    %number = arith.divui %j, %c4 : index
    %inside = arith.remui %j, %c4 : index
    %page = tensor.extract %lists[%run, %number] : tensor<?x?xi32>
    %at = arith.index_cast %page : i32 to index
    %slot = arith.muli %at, %c4 : index
    %row = arith.addi %slot, %inside : index
    %place = arith.muli %row, %stride : index
    %x = tensor.extract %flat[%place] : tensor<?xf32>
    %last = arith.index_cast %position : i32 to index
    %before = arith.cmpi sle, %j, %last : index
    %age = arith.subi %last, %j : index
    %near = arith.cmpi slt, %age, %reach : index
    %seen = arith.andi %before, %near : i1
    %w = arith.addi %j, %weight : index
    %wi = arith.index_cast %w : index to i32
    %wf = arith.sitofp %wi : i32 to f32
    %x1 = arith.addf %x, %one : f32
    %term = arith.mulf %x1, %wf : f32
    %term0 = arith.select %seen, %term, %zero : f32
    %sum = arith.addf %acc, %term0 : f32
    linalg.yield %sum : f32
  } -> tensor<?xf32>
  return %sums : tensor<?xf32>
}

func.func @step(%tokens: tensor<?xi32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %rows: tensor<?xi32>,
                %slots0: tensor<?xi32>, %lists0: tensor<?x?xi32>, %slots1: tensor<?xi32>, %lists1: tensor<?x?xi32>,
                %places: tensor<?xi32>,
                %pool0: tensor<?x1x4x1x1xf32> {iree.abi.consume}, %pool1: tensor<?x1x4x2x3xf32> {iree.abi.consume},
                %state: tensor<?x1x1xf32> {iree.abi.consume})
    -> (tensor<?x7xf32>, tensor<?x1x4x1x1xf32>, tensor<?x1x4x2x3xf32>, tensor<?x1x1xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c6 = arith.constant 6 : index
  %far = arith.constant 1000000 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %n = tensor.dim %tokens, %c0 : tensor<?xi32>
  %r = tensor.dim %rows, %c0 : tensor<?xi32>
  %s = tensor.dim %runs, %c0 : tensor<?x3xi32>
  %m = tensor.dim %state, %c0 : tensor<?x1x1xf32>
  %pages0 = tensor.dim %pool0, %c0 : tensor<?x1x4x1x1xf32>
  %pages1 = tensor.dim %pool1, %c0 : tensor<?x1x4x2x3xf32>

  %values = arith.sitofp %tokens : tensor<?xi32> to tensor<?xf32>
  %updates0 = tensor.expand_shape %values [[0, 1]] output_shape [%n, 1] : tensor<?xf32> into tensor<?x1xf32>
  %places0 = tensor.expand_shape %slots0 [[0, 1]] output_shape [%n, 1] : tensor<?xi32> into tensor<?x1xi32>
  %flat0 = tensor.collapse_shape %pool0 [[0, 1, 2], [3, 4]] : tensor<?x1x4x1x1xf32> into tensor<?x1xf32>
  %written0 = iree_linalg_ext.scatter dimension_map = [0] unique_indices(true)
      ins(%updates0, %places0 : tensor<?x1xf32>, tensor<?x1xi32>) outs(%flat0 : tensor<?x1xf32>) {
  ^bb0(%new: f32, %old: f32):
    iree_linalg_ext.yield %new : f32
  } -> tensor<?x1xf32>
  %kept0 = tensor.expand_shape %written0 [[0, 1, 2], [3, 4]] output_shape [%pages0, 1, 4, 1, 1]
      : tensor<?x1xf32> into tensor<?x1x4x1x1xf32>

  %wide = tensor.empty(%n) : tensor<?x6xf32>
  %updates1 = linalg.broadcast ins(%values : tensor<?xf32>) outs(%wide : tensor<?x6xf32>) dimensions = [1]
  %places1 = tensor.expand_shape %slots1 [[0, 1]] output_shape [%n, 1] : tensor<?xi32> into tensor<?x1xi32>
  %flat1 = tensor.collapse_shape %pool1 [[0, 1, 2], [3, 4]] : tensor<?x1x4x2x3xf32> into tensor<?x6xf32>
  %written1 = iree_linalg_ext.scatter dimension_map = [0] unique_indices(true)
      ins(%updates1, %places1 : tensor<?x6xf32>, tensor<?x1xi32>) outs(%flat1 : tensor<?x6xf32>) {
  ^bb0(%new: f32, %old: f32):
    iree_linalg_ext.yield %new : f32
  } -> tensor<?x6xf32>
  %kept1 = tensor.expand_shape %written1 [[0, 1, 2], [3, 4]] output_shape [%pages1, 1, 4, 2, 3]
      : tensor<?x6xf32> into tensor<?x1x4x2x3xf32>

  %owners = call @owners(%tokens, %runs) : (tensor<?xi32>, tensor<?x3xi32>) -> tensor<?xi32>
  %line0 = tensor.collapse_shape %written0 [[0, 1]] : tensor<?x1xf32> into tensor<?xf32>
  %line1 = tensor.collapse_shape %written1 [[0, 1]] : tensor<?x6xf32> into tensor<?xf32>
  %all = call @mix(%line0, %lists0, %owners, %positions, %far, %c1, %c1)
      : (tensor<?xf32>, tensor<?x?xi32>, tensor<?xi32>, tensor<?xi32>, index, index, index) -> tensor<?xf32>
  %window = call @mix(%line1, %lists1, %owners, %positions, %c6, %c2, %c6)
      : (tensor<?xf32>, tensor<?x?xi32>, tensor<?xi32>, tensor<?xi32>, index, index, index) -> tensor<?xf32>

  // What each run begins with, then the squares of its rows up to each.
  %starts_empty = tensor.empty(%s) : tensor<?xf32>
  %starts = linalg.generic {
      indexing_maps = [affine_map<(s) -> (s)>, affine_map<(s) -> (s)>], iterator_types = ["parallel"]}
      ins(%places : tensor<?xi32>) outs(%starts_empty : tensor<?xf32>) {
  ^bb0(%place: i32, %old: f32):
    %run = linalg.index 0 : index
    %before = tensor.extract %runs[%run, %c2] : tensor<?x3xi32>
    %none = arith.constant 0 : i32
    %begins = arith.cmpi eq, %before, %none : i32
    %at = arith.index_cast %place : i32 to index
    %held = tensor.extract %state[%at, %c0, %c0] : tensor<?x1x1xf32>
    %start = arith.select %begins, %zero, %held : f32
    linalg.yield %start : f32
  } -> tensor<?xf32>
  %row_empty = tensor.empty(%n) : tensor<?xf32>
  %row_starts = linalg.generic {
      indexing_maps = [affine_map<(t) -> (t)>, affine_map<(t) -> (t)>], iterator_types = ["parallel"]}
      ins(%owners : tensor<?xi32>) outs(%row_empty : tensor<?xf32>) {
  ^bb0(%owner: i32, %old: f32):
    %run = arith.index_cast %owner : i32 to index
    %start = tensor.extract %starts[%run] : tensor<?xf32>
    linalg.yield %start : f32
  } -> tensor<?xf32>
  %states = linalg.generic {
      indexing_maps = [affine_map<(t, u) -> (t)>, affine_map<(t, u) -> (u)>, affine_map<(t, u) -> (u)>,
                       affine_map<(t, u) -> (t)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%owners, %owners, %values : tensor<?xi32>, tensor<?xi32>, tensor<?xf32>) outs(%row_starts : tensor<?xf32>) {
  ^bb0(%mine: i32, %other: i32, %x: f32, %acc: f32):
    %t = linalg.index 0 : index
    %u = linalg.index 1 : index
    %same = arith.cmpi eq, %mine, %other : i32
    %before = arith.cmpi ule, %u, %t : index
    %counts = arith.andi %same, %before : i1
    %x1 = arith.addf %x, %one : f32
    %square = arith.mulf %x1, %x1 : f32
    %term = arith.select %counts, %square, %zero : f32
    %sum = arith.addf %acc, %term : f32
    linalg.yield %sum : f32
  } -> tensor<?xf32>
  %ends_empty = tensor.empty(%s) : tensor<?xf32>
  %ends = linalg.generic {
      indexing_maps = [affine_map<(s) -> (s)>, affine_map<(s) -> (s)>], iterator_types = ["parallel"]}
      ins(%places : tensor<?xi32>) outs(%ends_empty : tensor<?xf32>) {
  ^bb0(%place: i32, %old: f32):
    %run = linalg.index 0 : index
    %first = tensor.extract %runs[%run, %c0] : tensor<?x3xi32>
    %count = tensor.extract %runs[%run, %c1] : tensor<?x3xi32>
    %end = arith.addi %first, %count : i32
    %minus = arith.constant -1 : i32
    %last = arith.addi %end, %minus : i32
    %at = arith.index_cast %last : i32 to index
    %value = tensor.extract %states[%at] : tensor<?xf32>
    linalg.yield %value : f32
  } -> tensor<?xf32>
  %state_updates = tensor.expand_shape %ends [[0, 1]] output_shape [%s, 1] : tensor<?xf32> into tensor<?x1xf32>
  %state_places = tensor.expand_shape %places [[0, 1]] output_shape [%s, 1] : tensor<?xi32> into tensor<?x1xi32>
  %state_rows = tensor.collapse_shape %state [[0], [1, 2]] : tensor<?x1x1xf32> into tensor<?x1xf32>
  %state_written = iree_linalg_ext.scatter dimension_map = [0] unique_indices(true)
      ins(%state_updates, %state_places : tensor<?x1xf32>, tensor<?x1xi32>) outs(%state_rows : tensor<?x1xf32>) {
  ^bb0(%new: f32, %old: f32):
    iree_linalg_ext.yield %new : f32
  } -> tensor<?x1xf32>
  %state_kept = tensor.expand_shape %state_written [[0], [1, 2]] output_shape [%m, 1, 1]
      : tensor<?x1xf32> into tensor<?x1x1xf32>

  %out = tensor.empty(%r) : tensor<?x7xf32>
  %logits = linalg.generic {
      indexing_maps = [affine_map<(r, v) -> (r)>, affine_map<(r, v) -> (r, v)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%rows : tensor<?xi32>) outs(%out : tensor<?x7xf32>) {
  ^bb0(%row: i32, %old: f32):
    %v = linalg.index 1 : index
    %at = arith.index_cast %row : i32 to index
    %a = tensor.extract %all[%at] : tensor<?xf32>
    %w = tensor.extract %window[%at] : tensor<?xf32>
    %x = tensor.extract %states[%at] : tensor<?xf32>
    %vi = arith.index_cast %v : index to i32
    %vf = arith.sitofp %vi : i32 to f32
    %seven = arith.constant 7.0 : f32
    %rest = arith.subf %seven, %vf : f32
    %near = arith.mulf %w, %vf : f32
    %old_ones = arith.mulf %x, %rest : f32
    %sum0 = arith.addf %a, %near : f32
    %sum = arith.addf %sum0, %old_ones : f32
    %whole = arith.fptosi %sum : f32 to i32
    %modulus = arith.constant 1009 : i32
    %left = arith.remsi %whole, %modulus : i32
    %result = arith.sitofp %left : i32 to f32
    linalg.yield %result : f32
  } -> tensor<?x7xf32>
  return %logits, %kept0, %kept1, %state_kept
      : tensor<?x7xf32>, tensor<?x1x4x1x1xf32>, tensor<?x1x4x2x3xf32>, tensor<?x1x1xf32>
}
