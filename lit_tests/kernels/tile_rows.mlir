// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{isa=amx-bf16}' --print-kernels | filecheck %s

// Rows that come with the call: a nest on tiles, then the nest of one row, which adds up in the same order.
// CHECK: // @mxc_mxfp4_bf16_1xDx40x288_tiles
// CHECK: tdpbf16ps
// CHECK: kernel f4E2M1FN_all (g 1, m 1, n 40, k 288)
// CHECK-NEXT:   A      bf16      [r k]            global k2 k1 k0 k3 k4
// CHECK-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// CHECK-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// CHECK-NEXT:   T      f32       [m n]            stack   | n0 n1 n2 n3
// CHECK-NEXT:   Y      f32       [y n]            global -, n masked
// CHECK-NEXT:   a      f32       [m k]            stack  k1 k0 k3 k4 k2
// CHECK-NEXT:   W      f32       [n k]            register  | n0 n1 n2 n3 | k2 k1 k0 k3 k4
// CHECK-NEXT:   S      f32       [m n]            register  | n0 n1 n2 n3, chains: 2 of each sum
// CHECK-NEXT:   t      f32       [m n]            register  | n0 n1 n2 n3
// CHECK-NEXT:   r is g + m
// CHECK-NEXT:   y is g + m
// CHECK-NEXT: for g by 1 in grid:
// CHECK-NEXT:   for n by 64 in grid:
// CHECK-NEXT:     for n by 16:
// CHECK-NEXT:       T = 0
// CHECK-NEXT:     for k by 288:
// CHECK-NEXT:       for k by 32:
// CHECK-NEXT:         a = decode A                             : to f32
// CHECK-NEXT:       for n by 16:
// CHECK-NEXT:         t = T
// CHECK-NEXT:         for k by 32:
// CHECK-NEXT:           W = decode B (asked for 1024 k ahead)    : look up
// CHECK-NEXT:           S = 0
// CHECK-NEXT:           S += dot a, W                            : multiply-add
// CHECK-NEXT:           t += scale S, SB                         : multiply-add
// CHECK-NEXT:         T = t
// CHECK-NEXT:     for n by 16:
// CHECK-NEXT:       Y = map T
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<40x9x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<40x9xi8>
func.func @rows_of_the_call(%x: tensor<?x9x32xbf16>) -> tensor<?x40xf32> {
  %0 = util.global.load immutable @w : tensor<40x9x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<40x9x16xi8> -> tensor<40x9x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<40x9xi8>
  %3 = flow.tensor.bitcast %2 : tensor<40x9xi8> -> tensor<40x9xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %zero = arith.constant 0 : index
  %rows = tensor.dim %x, %zero : tensor<?x9x32xbf16>
  %e = tensor.empty(%rows) : tensor<?x40xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<?x40xf32>) -> tensor<?x40xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<?x9x32xbf16>, tensor<40x9x32xf4E2M1FN>, tensor<40x9xf8E8M0FNU>) outs(%acc : tensor<?x40xf32>) {
  ^bb0(%a: bf16, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %f = arith.extf %a : bf16 to f32
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %f, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x40xf32>
  func.return %y : tensor<?x40xf32>
}
