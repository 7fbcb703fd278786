// A "language model" of whole numbers, small enough to predict: T = 4, longest sequence 16,
// vocabulary 7. hidden[t, h] = sum over j <= position + t of (j + 1 + h) * (token_j + 1), so every
// token that attention sees counts, a padding token too; logits[t, v] = hidden[t, 0] + v * hidden[t, 1].
func.func private @mix(%cache: tensor<19xf32>, %tokens: tensor<?xi32>, %position: i32) -> tensor<?x2xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %tokens, %c0 : tensor<?xi32>
  %empty = tensor.empty(%n) : tensor<?x2xf32>
  %zero = arith.constant 0.0 : f32
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x2xf32>) -> tensor<?x2xf32>
  %p = arith.index_cast %position : i32 to index
  %hidden = linalg.generic {
      indexing_maps = [affine_map<(t, h, j) -> (j)>, affine_map<(t, h, j) -> (t, h)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%cache : tensor<19xf32>) outs(%init : tensor<?x2xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %t = linalg.index 0 : index
    %h = linalg.index 1 : index
    %j = linalg.index 2 : index
    %c1 = arith.constant 1 : index
    %one = arith.constant 1.0 : f32
    %last = arith.addi %p, %t : index
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
  return %hidden : tensor<?x2xf32>
}

func.func private @head(%hidden: tensor<?x2xf32>) -> tensor<?x7xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %hidden, %c0 : tensor<?x2xf32>
  %empty = tensor.empty(%n) : tensor<?x7xf32>
  %first = tensor.extract_slice %hidden[0, 0] [%n, 1] [1, 1] : tensor<?x2xf32> to tensor<?xf32>
  %second = tensor.extract_slice %hidden[0, 1] [%n, 1] [1, 1] : tensor<?x2xf32> to tensor<?xf32>
  %logits = linalg.generic {
      indexing_maps = [affine_map<(t, v) -> (t)>, affine_map<(t, v) -> (t)>, affine_map<(t, v) -> (t, v)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%first, %second : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?x7xf32>) {
  ^bb0(%a: f32, %b: f32, %out: f32):
    %v = linalg.index 1 : index
    %vi = arith.index_cast %v : index to i32
    %vf = arith.sitofp %vi : i32 to f32
    %scaled = arith.mulf %b, %vf : f32
    %sum = arith.addf %a, %scaled : f32
    linalg.yield %sum : f32
  } -> tensor<?x7xf32>
  return %logits : tensor<?x7xf32>
}

func.func @prefill(%tokens: tensor<4xi32>, %position: i32, %cache: tensor<19xf32>) -> (tensor<4x2xf32>, tensor<19xf32>) {
  %p = arith.index_cast %position : i32 to index
  %values = arith.sitofp %tokens : tensor<4xi32> to tensor<4xf32>
  %new = tensor.insert_slice %values into %cache[%p] [4] [1] : tensor<4xf32> into tensor<19xf32>
  %dynamic = tensor.cast %tokens : tensor<4xi32> to tensor<?xi32>
  %hidden = call @mix(%new, %dynamic, %position) : (tensor<19xf32>, tensor<?xi32>, i32) -> tensor<?x2xf32>
  %static = tensor.cast %hidden : tensor<?x2xf32> to tensor<4x2xf32>
  return %static, %new : tensor<4x2xf32>, tensor<19xf32>
}

func.func @decode(%tokens: tensor<1xi32>, %position: i32, %cache: tensor<19xf32>) -> (tensor<1x7xf32>, tensor<19xf32>) {
  %p = arith.index_cast %position : i32 to index
  %values = arith.sitofp %tokens : tensor<1xi32> to tensor<1xf32>
  %new = tensor.insert_slice %values into %cache[%p] [1] [1] : tensor<1xf32> into tensor<19xf32>
  %dynamic = tensor.cast %tokens : tensor<1xi32> to tensor<?xi32>
  %hidden = call @mix(%new, %dynamic, %position) : (tensor<19xf32>, tensor<?xi32>, i32) -> tensor<?x2xf32>
  %logits = call @head(%hidden) : (tensor<?x2xf32>) -> tensor<?x7xf32>
  %static = tensor.cast %logits : tensor<?x7xf32> to tensor<1x7xf32>
  return %static, %new : tensor<1x7xf32>, tensor<19xf32>
}

func.func @logits(%hidden: tensor<4x2xf32>) -> tensor<4x7xf32> {
  %dynamic = tensor.cast %hidden : tensor<4x2xf32> to tensor<?x2xf32>
  %logits = call @head(%dynamic) : (tensor<?x2xf32>) -> tensor<?x7xf32>
  %static = tensor.cast %logits : tensor<?x7xf32> to tensor<4x7xf32>
  return %static : tensor<4x7xf32>
}

func.func @logits_row(%hidden: tensor<4x2xf32>, %row: i32) -> tensor<1x7xf32> {
  %r = arith.index_cast %row : i32 to index
  %slice = tensor.extract_slice %hidden[%r, 0] [1, 2] [1, 1] : tensor<4x2xf32> to tensor<1x2xf32>
  %dynamic = tensor.cast %slice : tensor<1x2xf32> to tensor<?x2xf32>
  %logits = call @head(%dynamic) : (tensor<?x2xf32>) -> tensor<?x7xf32>
  %static = tensor.cast %logits : tensor<?x7xf32> to tensor<1x7xf32>
  return %static : tensor<1x7xf32>
}
