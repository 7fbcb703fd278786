// RUN: mxc opt %s --split-input-file --passes mxc-choose-gpu-schedule | filecheck %s
// RUN: printf '[{"m": 4, "schedule": {"instruction": 32, "tiles": [1, 1], "waves": [1, 1, 2]}}, {"rhs": "mxfp4", "schedule": {"instruction": 16, "tiles": [2, 2], "waves": [2, 2, 1]}}]' > %t.json
// RUN: mxc opt %s --passes 'mxc-choose-gpu-schedule{file=%t.json}' | filecheck %s --check-prefix=GIVEN
// RUN: printf '[{"n": 4096, "schedule": [{"below": 9, "instruction": 16, "tiles": [1, 1], "waves": [1, 1, 4]}, {"instruction": 16, "tiles": [2, 2], "waves": [2, 2, 1]}]}]' > %t.several.json
// RUN: mxc opt %s --passes 'mxc-choose-gpu-schedule{file=%t.several.json}' | filecheck %s --check-prefix=SEVERAL

// Few rows come straight from memory, with waves along K; many pass through shared memory.
// CHECK-LABEL: @mixed_pair(
// CHECK: mxc.schedule = {instruction = 16 : i64, tiles = array<i64: 1, 1>, transport = "stream", waves = array<i64: 1, 1, 8>}
// CHECK-LABEL: @many_rows(
// CHECK: mxc.schedule = {instruction = 32 : i64, k_steps = 2 : i64, stages = {{.*}} : i64, tiles = array<i64: {{.*}}>, transport = "ring", waves = array<i64: 4, 1, 1>}
// Of a number that comes with the call: one for a few rows, one for some, one for many.
// CHECK-LABEL: @any_rows(
// CHECK: mxc.schedule = [
// CHECK-SAME: {below = {{[0-9]+}} : i64, instruction = 16 : i64, tiles = array<i64: 1, 1>, transport = "stream", waves = array<i64: 1, 1, 8>}
// CHECK-SAME: {below = {{[0-9]+}} : i64, instruction = 32 : i64,
// CHECK-SAME: {instruction = 32 : i64, k_steps = 2 : i64, stages = {{[2-8]}} : i64, {{.*}}transport = "ring"
// CHECK-LABEL: @no_scales(
// CHECK-NOT: mxc.schedule

// GIVEN-LABEL: @mixed_pair(
// GIVEN: mxc.schedule = {instruction = 32 : i64, tiles = array<i64: 1, 1>, transport = "stream", waves = array<i64: 1, 1, 2>}
// GIVEN-LABEL: @many_rows(
// GIVEN: mxc.schedule = {instruction = 16 : i64, tiles = array<i64: 2, 2>, transport = "stream", waves = array<i64: 2, 2, 1>}
// GIVEN-LABEL: @any_rows(
// GIVEN: mxc.schedule = {instruction = 16 : i64, tiles = array<i64: 2, 2>,
// SEVERAL-LABEL: @any_rows(
// SEVERAL: mxc.schedule = [{below = 9 : i64, instruction = 16 : i64, tiles = array<i64: 1, 1>, {{.*}}}, {instruction = 16 : i64, tiles = array<i64: 2, 2>, {{.*}}}]
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

func.func @many_rows(%x: tensor<4096x256x32xf8E4M3FN>, %xs: tensor<4096x256xf8E8M0FNU>, %w: tensor<4096x256x32xf4E2M1FN>, %s: tensor<4096x256xf8E8M0FNU>) -> tensor<4096x4096xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4096x4096xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4096x256x32xf8E4M3FN>, tensor<4096x256x32xf4E2M1FN>, tensor<4096x256xf8E8M0FNU>, tensor<4096x256xf8E8M0FNU>) outs(%acc : tensor<4096x4096xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4096x4096xf32>
  func.return %y : tensor<4096x4096xf32>
}

func.func @any_rows(%x: tensor<?x256x32xf8E4M3FN>, %xs: tensor<?x256xf8E8M0FNU>, %w: tensor<4096x256x32xf4E2M1FN>, %s: tensor<4096x256xf8E8M0FNU>) -> tensor<?x4096xf32> {
  %c0 = arith.constant 0 : index
  %m = tensor.dim %x, %c0 : tensor<?x256x32xf8E4M3FN>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty(%m) : tensor<?x4096xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<?x4096xf32>) -> tensor<?x4096xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<?x256x32xf8E4M3FN>, tensor<4096x256x32xf4E2M1FN>, tensor<?x256xf8E8M0FNU>, tensor<4096x256xf8E8M0FNU>) outs(%acc : tensor<?x4096xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x4096xf32>
  func.return %y : tensor<?x4096xf32>
}

func.func @no_scales(%x: tensor<4x64xf32>, %w: tensor<64x32xf32>, %acc: tensor<4x32xf32>) -> tensor<4x32xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<4x64xf32>, tensor<64x32xf32>) outs(%acc : tensor<4x32xf32>) -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}
