// RUN: mxc opt %s --split-input-file --passes mxc-set-row-schedule | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-set-row-schedule{rows=4}' | filecheck %s --check-prefix=OPTIONS

// A norm: rows that come with the call are reduced one at a time, and so is what follows.
// CHECK-DAG: #[[REDUCED:.*]] = #iree_cpu.lowering_config<distribution = [8, 0], vector_common_parallel = [1, 0], vector_reduction = [0, 16]>
// CHECK-DAG: #[[SCALED:.*]] = #iree_cpu.lowering_config<vector_common_parallel = [1, 0], vector_inner_parallel = [0, 16]>
// CHECK-DAG: #[[PIPELINE:.*]] = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>
// CHECK-DAG: #[[INFO:.*]] = #iree_codegen.compilation_info<lowering_config = #[[REDUCED]], translation_info = #[[PIPELINE]]>
// CHECK: @norm
// CHECK: attrs = {compilation_info = #[[INFO]]}
// CHECK: attrs = {lowering_config = #[[SCALED]]}
// OPTIONS: distribution = [4, 0]
func.func @norm(%x: tensor<?x8192xf32>, %a: tensor<?xf32>, %e: tensor<?x8192xf32>) -> tensor<?x8192xf32> {
  %0 = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<?x8192xf32>) outs(%a : tensor<?xf32>) {
  ^bb0(%b: f32, %o: f32):
    %q = arith.addf %o, %b : f32
    linalg.yield %q : f32
  } -> tensor<?xf32>
  %1 = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%x, %0 : tensor<?x8192xf32>, tensor<?xf32>) outs(%e : tensor<?x8192xf32>) {
  ^bb0(%b: f32, %c: f32, %o: f32):
    %q = arith.divf %b, %c : f32
    linalg.yield %q : f32
  } -> tensor<?x8192xf32>
  func.return %1 : tensor<?x8192xf32>
}

// -----

// Heads of rows; one shorter than 16 is one vector.
// CHECK: lowering_config<distribution = [8, 0, 0], vector_common_parallel = [1, 1, 0], vector_reduction = [0, 0, 4]>
// CHECK: @heads
// CHECK: attrs = {compilation_info = #
func.func @heads(%y: tensor<?x8x4xf32>, %b: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %1 = linalg.generic {
      indexing_maps = [affine_map<(m, h, k) -> (m, h, k)>, affine_map<(m, h, k) -> (m, h)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%y : tensor<?x8x4xf32>) outs(%b : tensor<?x8xf32>) {
  ^bb0(%e: f32, %o: f32):
    %q = arith.addf %o, %e : f32
    linalg.yield %q : f32
  } -> tensor<?x8xf32>
  func.return %1 : tensor<?x8xf32>
}

// -----

// Left to IREE: rows of a stated number, and what no operand has an element of its own for.
// CHECK-LABEL: @others
// CHECK-NOT: compilation_info
func.func @others(%x: tensor<3x2880xf32>, %a: tensor<3xf32>, %c: tensor<?xi32>, %b: tensor<8xi32>) -> (tensor<3xf32>, tensor<8xi32>) {
  %0 = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<3x2880xf32>) outs(%a : tensor<3xf32>) {
  ^bb0(%e: f32, %o: f32):
    %q = arith.addf %o, %e : f32
    linalg.yield %q : f32
  } -> tensor<3xf32>
  %1 = linalg.generic {
      indexing_maps = [affine_map<(g, p) -> (p)>, affine_map<(g, p) -> (g)>], iterator_types = ["parallel", "reduction"]}
      ins(%c : tensor<?xi32>) outs(%b : tensor<8xi32>) {
  ^bb0(%e: i32, %o: i32):
    %q = arith.addi %o, %e : i32
    linalg.yield %q : i32
  } -> tensor<8xi32>
  func.return %0, %1 : tensor<3xf32>, tensor<8xi32>
}

// -----

// Left to IREE: what is elementwise alone.
// CHECK-LABEL: @elementwise
// CHECK-NOT: lowering_config
func.func @elementwise(%x: tensor<?x64xf32>, %e: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %0 = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x64xf32>) outs(%e : tensor<?x64xf32>) {
  ^bb0(%b: f32, %o: f32):
    %q = arith.negf %b : f32
    linalg.yield %q : f32
  } -> tensor<?x64xf32>
  func.return %0 : tensor<?x64xf32>
}
