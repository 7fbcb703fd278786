// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{isa=amx-bf16}' --print-kernels | filecheck %s

// The kernel of a contraction on tiles as a nest: its sizes, where everything lies, what is done.
// CHECK: // @mxc_mxfp4_bf16_1x40x40x288_tiles
// CHECK-NEXT: kernel f4E2M1FN_all (g 1, m 40, n 40, k 288)
// CHECK-NEXT:   A      bf16      [r k]            global k2 k1 k0 k3 k4, m padded
// CHECK-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// CHECK-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// CHECK-NEXT:   T      f32       [m n]            stack   | n0 n1 n2 n3 | m0 m1 m2 m3
// CHECK-NEXT:   Y      f32       [y n]            global -, m masked, n masked
// CHECK-NEXT:   W      bf16      [n k]            stack  k2 | n0 n1 n2 n3 | k1 k0 k3 k4, k in slots of 256
// CHECK-NEXT:   a      bf16      [m k]            tile   k2 | k1 k0 k3 k4 | m0 m1 m2 m3
// CHECK-NEXT:   w      bf16      [n k]            tile   k2 | n0 n1 n2 n3 | k1 k0 k3 k4
// CHECK-NEXT:   t      f32       [m n]            tile    | n0 n1 n2 n3 | m0 m1 m2 m3
// CHECK-NEXT:   r is g * 40 + m
// CHECK-NEXT:   y is g * 40 + m
// CHECK-NEXT: for g by 1 in grid:
// CHECK-NEXT:   for m by 48 in grid:
// CHECK-NEXT:     for n by 64 in grid:
// CHECK-NEXT:       for n by 32:
// CHECK-NEXT:         for m by 16:
// CHECK-NEXT:           T = 0
// CHECK-NEXT:         for first k by 256:
// CHECK-NEXT:           for n by 16:
// CHECK-NEXT:             for k by 32:
// CHECK-NEXT:               W = decode B, SB (asked for 512 k ahead) : look up, subtract from the exponent
// CHECK-NEXT:         for k by 256:
// CHECK-NEXT:           for m by 32, rest by 16:
// CHECK-NEXT:             t = T
// CHECK-NEXT:             for k by 32:
// CHECK-NEXT:               a = A
// CHECK-NEXT:               w = W
// CHECK-NEXT:               t += dot a, w                            : tdpbf16ps
// CHECK-NEXT:               for n by 16:
// CHECK-NEXT:                 W = decode B, SB (of k + 256 in last m, asked for 512 k ahead) : look up, subtract from the exponent
// CHECK-NEXT:             T = t
// CHECK-NEXT:             for m by 16:
// CHECK-NEXT:               for n by 16:
// CHECK-NEXT:                 Y = map T (in last k)
// CHECK-NOT: kernel
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<40x9x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<40x9xi8>
func.func @one_weight(%x: tensor<40x9x32xbf16>) -> tensor<40x40xf32> {
  %0 = util.global.load immutable @w : tensor<40x9x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<40x9x16xi8> -> tensor<40x9x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<40x9xi8>
  %3 = flow.tensor.bitcast %2 : tensor<40x9xi8> -> tensor<40x9xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<40x40xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<40x40xf32>) -> tensor<40x40xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<40x9x32xbf16>, tensor<40x9x32xf4E2M1FN>, tensor<40x9xf8E8M0FNU>) outs(%acc : tensor<40x40xf32>) {
  ^bb0(%a: bf16, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %f = arith.extf %a : bf16 to f32
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %f, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<40x40xf32>
  func.return %y : tensor<40x40xf32>
}
