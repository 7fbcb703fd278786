// RUN: printf '[{"m": 3, "schedule": {"instruction": 32, "tiles": [1, 1], "waves": [1, 1, 2]}}]' > %t.unused.json
// RUN: not mxc opt %s --passes 'mxc-choose-gpu-schedule{file=%t.unused.json}' 2>&1 | filecheck %s --check-prefix=UNUSED
// RUN: printf '[{"m": 4, "schedule": {"instruction": 8, "tiles": [1, 1], "waves": [1, 1, 2]}}]' > %t.wrong.json
// RUN: not mxc opt %s --passes 'mxc-choose-gpu-schedule{file=%t.wrong.json}' 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: printf '{"m": 4}' > %t.other.json
// RUN: not mxc opt %s --passes 'mxc-choose-gpu-schedule{file=%t.other.json}' 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not mxc opt %s --passes 'mxc-choose-gpu-schedule{file=%t.missing.json}' 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: printf '[{"schedule": [{"instruction": 16, "tiles": [1, 1], "waves": [1, 1, 2]}, {"instruction": 16, "tiles": [1, 1], "waves": [1, 1, 1]}]}]' > %t.bounds.json
// RUN: not mxc opt %s --passes 'mxc-choose-gpu-schedule{file=%t.bounds.json}' 2>&1 | filecheck %s --check-prefix=BOUNDS
// RUN: not mxc opt %s --passes 'mxc-choose-gpu-schedule{target=gfx90a}' 2>&1 | filecheck %s --check-prefix=TARGET

// UNUSED: unused.json: no contraction has m 3, or an entry before took them all; `mxc report` lists them
// WRONG: wrong.json: a schedule wants instruction 16 or 32
// OTHER: other.json: wanted a list of objects with a schedule and any of batch, m, n, k, lhs, rhs, found {"m": 4}
// BOUNDS: bounds.json: of several schedules all but the last want 'below', the number of rows from which on the next one goes, rising; found [None]
// MISSING: missing.json: schedules cannot be read
// TARGET: no kernel of ours is for 'gfx90a'; there are some for gfx950, gfx942, gfx1250, gfx1201
func.func @mixed_pair(%x: tensor<4x256x32xf8E4M3FN>, %xs: tensor<4x256xf8E8M0FNU>, %w: tensor<32x256x32xf4E2M1FN>, %s: tensor<32x256xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x256x32xf8E4M3FN>, tensor<32x256x32xf4E2M1FN>, tensor<4x256xf8E8M0FNU>, tensor<32x256xf8E8M0FNU>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

