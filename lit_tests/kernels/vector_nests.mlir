// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{isa=avx512-bf16}' --print-kernels | filecheck %s
// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{isa=avx2}' --print-kernels | filecheck %s --check-prefix=AVX2
// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{isa=neon-dotprod}' --print-kernels | filecheck %s --check-prefix=NEON
// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{isa=portable}' --print-kernels | filecheck %s --check-prefix=PORTABLE

// Of rows that come with the call, a tile decodes weights in registers, and multiplies its rows by them.
// Integers without a sign begin with what they have too much.
// CHECK: // @mxc_mxfp4_bf16_1xDx40x288
// CHECK-NEXT: kernel f4E2M1FN_all (g 1, m of the call, n 40, k 288)
// CHECK-NEXT:   A      bf16      [r k]            global k2 k1 k0 k3 k4, m clamped
// CHECK-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// CHECK-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// CHECK-NEXT:   T      f32       [m n]            register  | n0 n1 n2 n3
// CHECK-NEXT:   Y      f32       [y n]            global -, m clamped, n masked
// CHECK-NEXT:   W      bf16      [n k]            register k2 | n0 n1 n2 n3 | k1 k0 k3 k4
// CHECK-NEXT:   S      f32       [m n]            register  | n0 n1 n2 n3, chains: 1 sums, at most 26
// CHECK-NEXT:   r is g * size of m + m
// CHECK-NEXT:   y is g * size of m + m
// CHECK-NEXT: for g by 1 in grid:
// CHECK-NEXT:   for m by 904 in grid:
// CHECK-NEXT:     for n by 64 in grid:
// CHECK-NEXT:       for n by 32, rest by 16:
// CHECK-NEXT:         for m by 8, rest by 4 or 1:
// CHECK-NEXT:           T = 0
// CHECK-NEXT:           for k by 32:
// CHECK-NEXT:             W = decode B (asked for 1024 k ahead)    : look up
// CHECK-NEXT:             S = 0
// CHECK-NEXT:             S += dot A, W                            : dot product of pairs
// CHECK-NEXT:             T += scale S, SB                         : multiply-add
// CHECK-NEXT:           Y = map T
// Of one row it is one stream of weights, whose sums add up in the same order.
// CHECK-NEXT: kernel f4E2M1FN_all (g 1, m 1, n 40, k 288)
// CHECK:   S      f32       [m n]            register  | n0 n1 n2 n3, chains: 1 sums, at most 26
// CHECK:     for n by 64 in grid:
// CHECK-NEXT:       for n by 16:
// CHECK-NEXT:         for m by 1:
// CHECK-NEXT:           T = 0
// CHECK-NEXT:           for k by 32:
// CHECK: // @mxc_mxfp4_int8_1x6x40x288
// CHECK-NEXT: kernel f4E2M1FN_all (g 1, m 6, n 40, k 288)
// CHECK-NEXT:   A      i8        [r k]            global k1 k2 k0 k3 k4
// CHECK-NEXT:   SA     f32       [r k] /k 32      global -
// CHECK-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// CHECK-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// CHECK-NEXT:   T      f32       [m n]            register  | n0 n1 n2 n3
// CHECK-NEXT:   Y      f32       [y n]            global -, n masked
// CHECK-NEXT:   W      u8        [n k]            register k1 k2 | n0 n1 n2 n3 | k0 k3 k4
// CHECK-NEXT:   OA     i32       [r k] /k 32      global -
// CHECK-NEXT:   S      i32       [m n]            register  | n0 n1 n2 n3, chains: 12 sums, at most 26
// CHECK-NEXT:   r is g * 6 + m
// CHECK-NEXT:   y is g * 6 + m
// CHECK-NEXT: for g by 1 in grid:
// CHECK-NEXT:   for m by 6 in grid:
// CHECK-NEXT:     for n by 64 in grid:
// CHECK-NEXT:       for n by 32, rest by 16:
// CHECK-NEXT:         for m by 6:
// CHECK-NEXT:           T = 0
// CHECK-NEXT:           for k by 32:
// CHECK-NEXT:             W = decode B (asked for 1024 k ahead)    : look up
// CHECK-NEXT:             S = OA
// CHECK-NEXT:             S += dot A, W                            : dot product of quads
// CHECK-NEXT:             T += scale S, SA, SB                     : multiply, multiply-add
// CHECK-NEXT:           Y = map T
// CHECK-NOT: kernel

// Where decoding is costly, a chunk of K is decoded once, for all rows.
// AVX2: // @mxc_mxfp4_bf16_1xDx40x288
// AVX2-NEXT: kernel f4E2M1FN_all (g 1, m of the call, n 40, k 288)
// AVX2-NEXT:   A      f32       [r k]            global k2 k1 k0 k3 k4, m clamped
// AVX2-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// AVX2-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// AVX2-NEXT:   T      f32       [m n]            stack   | n0 n1 n2
// AVX2-NEXT:   Y      f32       [y n]            global -, m clamped, n masked
// AVX2-NEXT:   W      f32       [n k]            stack   | n0 n1 n2 | k2 k1 k0 k3 k4, k in slots of 224
// AVX2-NEXT:   SW     f32       [n k] /k 32      stack   | n0 n1 n2, k in slots of 224
// AVX2-NEXT:   S      f32       [m n]            register  | n0 n1 n2, chains: 1 sums, at most 10
// AVX2-NEXT:   t      f32       [m n]            register  | n0 n1 n2
// AVX2-NEXT:   r is g * size of m + m
// AVX2-NEXT:   y is g * size of m + m
// AVX2-NEXT: for g by 1 in grid:
// AVX2-NEXT:   for m by 252 in grid:
// AVX2-NEXT:     for n by 64 in grid:
// AVX2-NEXT:       for n by 16:
// AVX2-NEXT:         for m by 6, rest by 3 or 1:
// AVX2-NEXT:           T = 0
// AVX2-NEXT:         for k by 224:
// AVX2-NEXT:           for k by 32:
// AVX2-NEXT:             W = decode B (asked for 1024 k ahead)    : look up
// AVX2-NEXT:             SW = decode SB                           : to f32
// AVX2-NEXT:           for m by 6, rest by 3 or 1:
// AVX2-NEXT:             t = T
// AVX2-NEXT:             for k by 32:
// AVX2-NEXT:               S = 0
// AVX2-NEXT:               S += dot A, W                            : multiply-add
// AVX2-NEXT:               t += scale S, SW                         : multiply-add
// AVX2-NEXT:             T = t
// AVX2-NEXT:         for m by 6, rest by 3 or 1:
// AVX2-NEXT:           Y = map T
// Of one row in registers.
// AVX2-NEXT: kernel f4E2M1FN_all (g 1, m 1, n 40, k 288)
// AVX2:   W      f32       [n k]            register  | n0 n1 n2 | k2 k1 k0 k3 k4

// Integers with a sign, and registers of four columns.
// NEON: // @mxc_mxfp4_int8_1x6x40x288
// NEON-NEXT: kernel f4E2M1FN_all (g 1, m 6, n 40, k 288)
// NEON-NEXT:   A      i8        [r k]            global k1 k2 k0 k3 k4
// NEON-NEXT:   SA     f32       [r k] /k 32      global -
// NEON-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// NEON-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// NEON-NEXT:   T      f32       [m n]            register  | n0 n1
// NEON-NEXT:   Y      f32       [y n]            global -, n masked
// NEON-NEXT:   W      i8        [n k]            register k1 k2 | n0 n1 | k0 k3 k4
// NEON-NEXT:   S      i32       [m n]            register  | n0 n1, chains: 12 sums, at most 26
// NEON-NEXT:   r is g * 6 + m
// NEON-NEXT:   y is g * 6 + m
// NEON-NEXT: for g by 1 in grid:
// NEON-NEXT:   for m by 6 in grid:
// NEON-NEXT:     for n by 64 in grid:
// NEON-NEXT:       for n by 8:
// NEON-NEXT:         for m by 6:
// NEON-NEXT:           T = 0
// NEON-NEXT:           for k by 32:
// NEON-NEXT:             W = decode B (asked for 1024 k ahead)    : look up
// NEON-NEXT:             S = 0
// NEON-NEXT:             S += dot A, W                            : dot product of quads
// NEON-NEXT:             T += scale S, SA, SB                     : multiply, multiply-add
// NEON-NEXT:           Y = map T

// No dot products: integers too are multiplied as floats, in four lanes and with few registers for sums.
// PORTABLE: // @mxc_mxfp4_bf16_1xDx40x288
// PORTABLE-NEXT: kernel f4E2M1FN_all (g 1, m of the call, n 40, k 288)
// PORTABLE-NEXT:   A      f32       [r k]            global k2 k1 k0 k3 k4, m clamped
// PORTABLE-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// PORTABLE-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// PORTABLE-NEXT:   T      f32       [m n]            stack   | n0 n1
// PORTABLE-NEXT:   Y      f32       [y n]            global -, m clamped, n masked
// PORTABLE-NEXT:   W      f32       [n k]            stack   | n0 n1 | k2 k1 k0 k3 k4, k in slots of 224
// PORTABLE-NEXT:   SW     f32       [n k] /k 32      stack   | n0 n1, k in slots of 224
// PORTABLE-NEXT:   S      f32       [m n]            register  | n0 n1, chains: 1 sums, at most 6
// PORTABLE-NEXT:   t      f32       [m n]            register  | n0 n1
// PORTABLE-NEXT:   r is g * size of m + m
// PORTABLE-NEXT:   y is g * size of m + m
// PORTABLE-NEXT: for g by 1 in grid:
// PORTABLE-NEXT:   for m by 452 in grid:
// PORTABLE-NEXT:     for n by 64 in grid:
// PORTABLE-NEXT:       for n by 8:
// PORTABLE-NEXT:         for m by 4, rest by 2 or 1:
// PORTABLE-NEXT:           T = 0
// PORTABLE-NEXT:         for k by 224:
// PORTABLE-NEXT:           for k by 32:
// PORTABLE-NEXT:             W = decode B (asked for 1024 k ahead)    : look up
// PORTABLE-NEXT:             SW = decode SB                           : to f32
// PORTABLE-NEXT:           for m by 4, rest by 2 or 1:
// PORTABLE-NEXT:             t = T
// PORTABLE-NEXT:             for k by 32:
// PORTABLE-NEXT:               S = 0
// PORTABLE-NEXT:               S += dot A, W                            : multiply-add
// PORTABLE-NEXT:               t += scale S, SW                         : multiply-add
// PORTABLE-NEXT:             T = t
// PORTABLE-NEXT:         for m by 4, rest by 2 or 1:
// PORTABLE-NEXT:           Y = map T
// PORTABLE: // @mxc_prepare_int8_floats0_0.4.2.6x288: emitted directly, not in the kernel language (docs/kernels.md)
// PORTABLE-NEXT: // @mxc_mxfp4_int8_1x6x40x288
// PORTABLE-NEXT: kernel f4E2M1FN_all (g 1, m 6, n 40, k 288)
// PORTABLE-NEXT:   A      f32       [r k]            global k2 k1 k0 k3 k4
// PORTABLE-NEXT:   SA     f32       [r k] /k 32      global -
// PORTABLE-NEXT:   B      f4E2M1FN  [n k]            global k0 k1 k2 n0 n1 n2 n3 k3 k4
// PORTABLE-NEXT:   SB     f8E8M0FNU [n k] /k 32      global n0 n1 n2 n3
// PORTABLE-NEXT:   T      f32       [m n]            stack   | n0 n1
// PORTABLE-NEXT:   Y      f32       [y n]            global -, n masked
// PORTABLE-NEXT:   W      f32       [n k]            stack   | n0 n1 | k2 k1 k0 k3 k4, k in slots of 224
// PORTABLE-NEXT:   SW     f32       [n k] /k 32      stack   | n0 n1, k in slots of 224
// PORTABLE-NEXT:   S      f32       [m n]            register  | n0 n1, chains: 4 sums, at most 6
// PORTABLE-NEXT:   t      f32       [m n]            register  | n0 n1
// PORTABLE-NEXT:   r is g * 6 + m
// PORTABLE-NEXT:   y is g * 6 + m
// PORTABLE-NEXT: for g by 1 in grid:
// PORTABLE-NEXT:   for m by 6 in grid:
// PORTABLE-NEXT:     for n by 64 in grid:
// PORTABLE-NEXT:       for n by 8:
// PORTABLE-NEXT:         for m by 3:
// PORTABLE-NEXT:           T = 0
// PORTABLE-NEXT:         for k by 224:
// PORTABLE-NEXT:           for k by 32:
// PORTABLE-NEXT:             W = decode B (asked for 1024 k ahead)    : look up
// PORTABLE-NEXT:             SW = decode SB                           : to f32
// PORTABLE-NEXT:           for m by 3:
// PORTABLE-NEXT:             t = T
// PORTABLE-NEXT:             for k by 32:
// PORTABLE-NEXT:               S = 0
// PORTABLE-NEXT:               S += dot A, W                            : multiply-add
// PORTABLE-NEXT:               t += scale S, SA, SW                     : multiply, multiply-add
// PORTABLE-NEXT:             T = t
// PORTABLE-NEXT:         for m by 3:
// PORTABLE-NEXT:           Y = map T

util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<40x9x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<40x9xi8>
util.global private @v = #flow.parameter.named<"model"::"v"> : tensor<40x9x16xi8>
util.global private @t = #flow.parameter.named<"model"::"t"> : tensor<40x9xi8>
func.func @floats(%x: tensor<?x9x32xbf16>) -> tensor<?x40xf32> {
  %0 = util.global.load immutable @w : tensor<40x9x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<40x9x16xi8> -> tensor<40x9x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<40x9xi8>
  %3 = flow.tensor.bitcast %2 : tensor<40x9xi8> -> tensor<40x9xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %i = arith.constant 0 : index
  %d = tensor.dim %x, %i : tensor<?x9x32xbf16>
  %e = tensor.empty(%d) : tensor<?x40xf32>
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
func.func @integers(%x: tensor<6x9x32xi8>, %r: tensor<6x9xf32>) -> tensor<6x40xf32> {
  %0 = util.global.load immutable @v : tensor<40x9x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<40x9x16xi8> -> tensor<40x9x32xf4E2M1FN>
  %2 = util.global.load immutable @t : tensor<40x9xi8>
  %3 = flow.tensor.bitcast %2 : tensor<40x9xi8> -> tensor<40x9xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<6x40xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<6x40xf32>) -> tensor<6x40xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %r, %3 : tensor<6x9x32xi8>, tensor<40x9x32xf4E2M1FN>, tensor<6x9xf32>, tensor<40x9xf8E8M0FNU>) outs(%acc : tensor<6x40xf32>) {
  ^bb0(%a: i8, %w: f4E2M1FN, %c: f32, %s: f8E8M0FNU, %o: f32):
    %g = arith.sitofp %a : i8 to f32
    %f = arith.mulf %g, %c : f32
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %f, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<6x40xf32>
  func.return %y : tensor<6x40xf32>
}
