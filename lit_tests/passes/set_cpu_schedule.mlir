// RUN: mxc opt %s --split-input-file --passes mxc-set-cpu-schedule | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-set-cpu-schedule{register-rows=2 columns=4}' | filecheck %s --check-prefix=OPTIONS

// Tiles are cut to the loops: 3 rows, 8 columns.
// CHECK: #[[CONFIG:.*]] = #iree_cpu.lowering_config<distribution = [3, 8, 0, 0], vector_common_parallel = [3, 4, 0, 0], vector_reduction = [0, 0, 1, 32]>
// CHECK: #[[PIPELINE:.*]] = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>
// CHECK: #[[INFO:.*]] = #iree_codegen.compilation_info<lowering_config = #[[CONFIG]], translation_info = #[[PIPELINE]]>
// CHECK: @few_rows
// CHECK: linalg.generic {{.*}} attrs = {compilation_info = #[[INFO]]}
// OPTIONS: distribution = [3, 4, 0, 0], vector_common_parallel = [2, 4, 0, 0]
func.func @few_rows(%x: tensor<3x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<3x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<3x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// -----

// A batch loop is one tile each; a loop of dynamic size gets the whole tile.
// CHECK: distribution = [1, 16, 64, 0, 0], vector_common_parallel = [1, 8, 4, 0, 0], vector_reduction = [0, 0, 0, 1, 32]>
// CHECK: @batch_of_dynamic_rows
func.func @batch_of_dynamic_rows(%x: tensor<2x?x2x32xf32>, %w: tensor<2x96x2x32xf4E2M1FN>, %s: tensor<2x96x2xf8E8M0FNU>, %acc: tensor<2x?x96xf32>) -> tensor<2x?x96xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(g, m, n, k, b) -> (g, m, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k)>, affine_map<(g, m, n, k, b) -> (g, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<2x?x2x32xf32>, tensor<2x96x2x32xf4E2M1FN>, tensor<2x96x2xf8E8M0FNU>) outs(%acc : tensor<2x?x96xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x?x96xf32>
  func.return %y : tensor<2x?x96xf32>
}

// -----

// What carries a schedule keeps it.
// CHECK: #iree_cpu.lowering_config<distribution = [1, 1, 0, 0]>
// CHECK: @scheduled
// CHECK: attrs = {compilation_info =
func.func @scheduled(%x: tensor<3x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<3x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<3x8xf32>)
      attrs = {compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = [1, 1, 0, 0]>, translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>} {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// -----

// A generic without a loop has no rows.
// CHECK-LABEL: @no_loop
// CHECK-NOT: lowering_config
func.func @no_loop(%x: tensor<f32>, %a: tensor<f32>) -> tensor<f32> {
  %0 = linalg.generic {indexing_maps = [affine_map<() -> ()>, affine_map<() -> ()>], iterator_types = []}
      ins(%x : tensor<f32>) outs(%a : tensor<f32>) {
  ^bb0(%e: f32, %o: f32):
    linalg.yield %e : f32
  } -> tensor<f32>
  func.return %0 : tensor<f32>
}
