// Integers of 4 and of 6 bits written by an elementwise operation, and their bytes.

#id = affine_map<(i) -> (i)>

func.func @i4(%codes: tensor<64xi8>) -> tensor<32xi8> {
  %empty = tensor.empty() : tensor<64xi4>
  %narrow = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%codes : tensor<64xi8>) outs(%empty : tensor<64xi4>) {
  ^bb0(%in: i8, %out: i4):
    %n = arith.trunci %in : i8 to i4
    linalg.yield %n : i4
  } -> tensor<64xi4>
  %bytes = flow.tensor.bitcast %narrow : tensor<64xi4> -> tensor<32xi8>
  return %bytes : tensor<32xi8>
}

func.func @i6(%codes: tensor<64xi8>) -> tensor<48xi8> {
  %empty = tensor.empty() : tensor<64xi6>
  %narrow = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%codes : tensor<64xi8>) outs(%empty : tensor<64xi6>) {
  ^bb0(%in: i8, %out: i6):
    %n = arith.trunci %in : i8 to i6
    linalg.yield %n : i6
  } -> tensor<64xi6>
  %bytes = flow.tensor.bitcast %narrow : tensor<64xi6> -> tensor<48xi8>
  return %bytes : tensor<48xi8>
}
