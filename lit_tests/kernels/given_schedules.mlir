// One product with each kind of entry: a schedule by its number, by its text, and one that there is
// not. The compiler's own is the first.
// RUN: mxc opt %s --passes mxc-lower-to-cpu-kernels --print-kernels | filecheck %s --check-prefix=OWN
// RUN: printf '[{"m": 9, "n": 80, "schedule": 3}]' > %t.number.json
// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{file=%t.number.json}' --print-kernels | filecheck %s --check-prefix=NUMBER
// RUN: printf '[{"rhs": "mxfp4", "schedule": "tiles of 5 x 32 in 32 columns", "device": "znver5"}]' > %t.text.json
// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{file=%t.text.json}' | filecheck %s --check-prefix=TEXT
// RUN: printf '[{"schedule": "tiles of 99 x 32 in 64 columns"}]' > %t.wrong.json
// RUN: not mxc opt %s --passes 'mxc-lower-to-cpu-kernels{file=%t.wrong.json}' 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: printf '[{"m": 9, "schedule": 80}]' > %t.beyond.json
// RUN: not mxc opt %s --passes 'mxc-lower-to-cpu-kernels{file=%t.beyond.json}' 2>&1 | filecheck %s --check-prefix=BEYOND
// RUN: printf '[{"lhs": "bf16", "schedule": 0}]' > %t.unused.json
// RUN: not mxc opt %s --passes 'mxc-lower-to-cpu-kernels{file=%t.unused.json}' 2>&1 | filecheck %s --check-prefix=UNUSED
// RUN: printf '[{"schedule": "16 rows x 32 columns, 256 k decoded at once, asked for 512 k ahead"}]' > %t.tiles.json
// RUN: mxc opt %s --passes 'mxc-lower-to-cpu-kernels{isa=amx-bf16 file=%t.tiles.json}' --print-kernels | filecheck %s --check-prefix=TILES

// TILES: // @mxc_mxfp4_f32_1x9x80x64_tiles
// TILES: for m by 16 in grid:
// TILES-NEXT: for n by 32 in grid:
// TILES: asked for 512 k ahead

// OWN: for n by 64 in grid:
// OWN-NEXT: for n by 32, rest by 16:
// OWN-NEXT: for m by 5, rest by 4:
// NUMBER: W {{ *}}f32 {{.*}} stack {{.*}}, k in slots of 96
// TEXT: schedule = "tiles of 5 x 32 in 32 columns, measured on znver5"
// WRONG: wrong.json: 1x9x80x64 has no schedule 'tiles of 99 x 32 in 64 columns'; it has tiles of 5 x 32 in 64 columns; tiles of 5 x 32 in 32 columns; {{.*}}
// BEYOND: beyond.json: wanted schedule 80 of 1x9x80x64, which has {{[0-9]+}}, 0 to {{[0-9]+$}}
// UNUSED: unused.json: no contraction has lhs bf16, or an entry before took them all; `mxc report` lists them
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<80x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<80x2xi8>
func.func @one_weight(%x: tensor<9x2x32xf32>) -> tensor<9x80xf32> {
  %0 = util.global.load immutable @w : tensor<80x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<80x2x16xi8> -> tensor<80x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<80x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<80x2xi8> -> tensor<80x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<9x80xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<9x80xf32>) -> tensor<9x80xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<9x2x32xf32>, tensor<80x2x32xf4E2M1FN>, tensor<80x2xf8E8M0FNU>) outs(%acc : tensor<9x80xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<9x80xf32>
  func.return %y : tensor<9x80xf32>
}
