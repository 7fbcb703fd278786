// RUN: mxc opt %s --split-input-file --passes mxc-lower-named-operations-to-gpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx1201}' | filecheck %s --check-prefix=NARROW

// A workgroup a row, a lane a column: each counts what goes before its own. The number of rows comes
// with the call.
// CHECK: workgroup_size = [128, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_top_8_of_Dx100 {
// CHECK: stream.executable.export public @mxc_top_8_of_Dx100 workgroups(%[[ROWS:.*]]: index) -> (index, index, index) {
// CHECK: stream.return %[[ROWS]], %c1{{.*}}, %c1
// CHECK: memref.alloc() : memref<128xf32, #gpu.address_space<workgroup>>
// CHECK: memref.load %{{.*}} : memref<?x100xf32,
// CHECK: amdgpu.lds_barrier
// CHECK: scf.for
// CHECK: vector.load %{{.*}} : memref<128xf32, #gpu.address_space<workgroup>>, vector<4xf32>
// CHECK: arith.cmpf oeq
// CHECK: arith.cmpi ult
// CHECK: arith.cmpf ogt
// CHECK: scf.if
// CHECK: memref.store %{{.*}} : memref<?x8xf32,
// CHECK: memref.store %{{.*}} : memref<?x8xi32,
// CHECK-LABEL: func.func @rows(
// CHECK: %[[MADE:.*]]:2 = flow.dispatch @mxc_top_8_of_Dx100::@mxc_top_8_of_Dx100[%{{.*}}](%arg0, %{{.*}}) : (tensor<?x100xf32>{%{{.*}}}, index) -> (tensor<?x8xf32>{%{{.*}}}, tensor<?x8xi32>{%{{.*}}})
// CHECK-NOT: topk_v2
// CHECK: return %[[MADE]]#0, %[[MADE]]#1
// NARROW: workgroup_size = [128, 1, 1] subgroup_size = 32
func.func @rows(%x: tensor<?x100xf32>) -> (tensor<?x8xf32>, tensor<?x8xi32>) {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x100xf32>
  %least = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i32
  %ve = tensor.empty(%n) : tensor<?x8xf32>
  %ie = tensor.empty(%n) : tensor<?x8xi32>
  %v = linalg.fill ins(%least : f32) outs(%ve : tensor<?x8xf32>) -> tensor<?x8xf32>
  %i = linalg.fill ins(%zero : i32) outs(%ie : tensor<?x8xi32>) -> tensor<?x8xi32>
  %0:2 = iree_linalg_ext.topk_v2 dimension(1) ins(%x : tensor<?x100xf32>) outs(%v, %i : tensor<?x8xf32>, tensor<?x8xi32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<?x8xf32>, tensor<?x8xi32>
  func.return %0#0, %0#1 : tensor<?x8xf32>, tensor<?x8xi32>
}

// -----

// Waves that are full, of 64 or of 32 lanes; rows that are known.
// CHECK: workgroup_size = [64, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_top_2_of_3x32 {
// CHECK: flow.dispatch @mxc_top_2_of_3x32::@mxc_top_2_of_3x32(%arg0) : (tensor<3x32xf32>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
// NARROW: workgroup_size = [32, 1, 1] subgroup_size = 32
func.func @known(%x: tensor<3x32xf32>) -> (tensor<3x2xf32>, tensor<3x2xi32>) {
  %least = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i32
  %ve = tensor.empty() : tensor<3x2xf32>
  %ie = tensor.empty() : tensor<3x2xi32>
  %v = linalg.fill ins(%least : f32) outs(%ve : tensor<3x2xf32>) -> tensor<3x2xf32>
  %i = linalg.fill ins(%zero : i32) outs(%ie : tensor<3x2xi32>) -> tensor<3x2xi32>
  %0:2 = iree_linalg_ext.topk_v2 dimension(1) ins(%x : tensor<3x32xf32>) outs(%v, %i : tensor<3x2xf32>, tensor<3x2xi32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<3x2xf32>, tensor<3x2xi32>
  func.return %0#0, %0#1 : tensor<3x2xf32>, tensor<3x2xi32>
}

// -----

// The least of a row; results that begin with others; more columns than lanes.
// CHECK-LABEL: func.func @left(
// CHECK-NOT: flow.dispatch
// CHECK: topk_v2 {mxc.contraction = {reason = "kernels choose the greatest"}}
// CHECK: topk_v2 {mxc.contraction = {reason = "its results begin with others than -inf and 0"}}
// CHECK: topk_v2 {mxc.contraction = {reason = "it chooses 2 of 2000; kernels choose from up to 1024"}}
func.func @left(%x: tensor<3x32xf32>, %w: tensor<3x2000xf32>, %vs: tensor<3x2xf32>) -> (tensor<3x2xi32>, tensor<3x2xi32>, tensor<3x2xi32>) {
  %least = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i32
  %ve = tensor.empty() : tensor<3x2xf32>
  %ie = tensor.empty() : tensor<3x2xi32>
  %v = linalg.fill ins(%least : f32) outs(%ve : tensor<3x2xf32>) -> tensor<3x2xf32>
  %i = linalg.fill ins(%zero : i32) outs(%ie : tensor<3x2xi32>) -> tensor<3x2xi32>
  %0:2 = iree_linalg_ext.topk_v2 dimension(1) ins(%x : tensor<3x32xf32>) outs(%v, %i : tensor<3x2xf32>, tensor<3x2xi32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf olt, %a, %b : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<3x2xf32>, tensor<3x2xi32>
  %1:2 = iree_linalg_ext.topk_v2 dimension(1) ins(%x : tensor<3x32xf32>) outs(%vs, %i : tensor<3x2xf32>, tensor<3x2xi32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<3x2xf32>, tensor<3x2xi32>
  %2:2 = iree_linalg_ext.topk_v2 dimension(1) ins(%w : tensor<3x2000xf32>) outs(%v, %i : tensor<3x2xf32>, tensor<3x2xi32>) {
  ^bb0(%a: f32, %b: f32):
    %c = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %c : i1
  } -> tensor<3x2xf32>, tensor<3x2xi32>
  func.return %0#1, %1#1, %2#1 : tensor<3x2xi32>, tensor<3x2xi32>, tensor<3x2xi32>
}
