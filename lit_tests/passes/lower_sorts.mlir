// RUN: mxc opt %s --split-input-file --passes mxc-lower-sorts | filecheck %s
// RUN: mxc opt %s --split-input-file --passes "mxc-lower-sorts{wave=64}" | filecheck %s --check-prefix=GPU

// A workgroup a row. Places of elements are compared last. NaN is the greatest number.
// CHECK: stream.executable private @mxc_sort_4x64x1_f32_i32_by_0 {
// CHECK: scf.for %{{.*}} = %{{.*}} to %c64
// CHECK: scf.for
// CHECK: scf.for
// CHECK: scf.for
// CHECK: %[[X:.*]] = memref.load %{{.*}} : memref<4x64x1xf32>
// CHECK: %[[Y:.*]] = memref.load %{{.*}} : memref<4x64x1xf32>
// CHECK: %[[X_IS:.*]] = arith.cmpf ord, %[[X]], %[[X]] : f32
// CHECK: %[[XY:.*]] = arith.cmpf ult, %[[X]], %[[Y]] : f32
// CHECK: %[[KEEPS:.*]] = arith.andi %[[XY]], %[[X_IS]] : i1
// CHECK: %[[YX:.*]] = arith.cmpf ult, %[[Y]], %[[X]] : f32
// CHECK: %[[SWAPS:.*]] = arith.andi %[[YX]], %{{.*}} : i1
// CHECK: %[[LATER:.*]] = arith.cmpi ult, %{{.*}} : i32
// CHECK: %[[SAME:.*]] = arith.cmpi eq, %[[KEEPS]], %[[SWAPS]] : i1
// CHECK: %[[HOW:.*]] = arith.select %[[SAME]], %[[LATER]], %[[SWAPS]] : i1
// CHECK: scf.if %[[HOW]] {
// CHECK-LABEL: func.func @argsort(
// CHECK: %[[R:.*]]:3 = flow.dispatch @mxc_sort_4x64x1_f32_i32_by_0::
// CHECK-NOT: iree_linalg_ext.sort
// CHECK: return

// On a GPU, a short row is in shared memory, and each step ends with a barrier.
// GPU: workgroup_size = [64, 1, 1] subgroup_size = 64
// GPU: stream.executable private @mxc_sort_4x64x1_f32_i32_by_0 {
// GPU: memref.alloc() : memref<64xf32, #gpu.address_space<workgroup>>
// GPU: gpu.barrier
// GPU: scf.for
// GPU: scf.for
// GPU: scf.for %{{.*}} = %thread_id_x
// GPU: memref.load %{{.*}} : memref<64xf32, #gpu.address_space<workgroup>>
// GPU: gpu.barrier
// GPU: %[[R:.*]]:2 = flow.dispatch @mxc_sort_4x64x1_f32_i32_by_0::
func.func @argsort(%x: tensor<4x64xf32>, %places: tensor<4x64xi32>) -> tensor<4x64xi32> {
  %r:2 = iree_linalg_ext.sort dimension(1) outs(%x, %places : tensor<4x64xf32>, tensor<4x64xi32>) {
  ^bb0(%a: f32, %b: f32, %i: i32, %j: i32):
    %before = arith.cmpf olt, %a, %b : f32
    iree_linalg_ext.yield %before : i1
  } -> tensor<4x64xf32>, tensor<4x64xi32>
  return %r#1 : tensor<4x64xi32>
}

// -----

// Sizes that come with the call, of an axis that is not the last; a constant of the comparison.
// CHECK: stream.executable private @mxc_sort_2xDx8_i32_by_0 {
// CHECK: math.ctlz
// CHECK: %[[C:.*]] = arith.constant 7 : i32
// CHECK: arith.andi %{{.*}}, %[[C]] : i32
// CHECK-LABEL: func.func @low_bits(
// CHECK: flow.dispatch @mxc_sort_2xDx8_i32_by_0::
func.func @low_bits(%x: tensor<2x?x8xi32>) -> tensor<2x?x8xi32> {
  %seven = arith.constant 7 : i32
  %r = iree_linalg_ext.sort dimension(1) outs(%x : tensor<2x?x8xi32>) {
  ^bb0(%a: i32, %b: i32):
    %low = arith.andi %a, %seven : i32
    %other = arith.andi %b, %seven : i32
    %before = arith.cmpi slt, %low, %other : i32
    iree_linalg_ext.yield %before : i1
  } -> tensor<2x?x8xi32>
  return %r : tensor<2x?x8xi32>
}

// -----

// Two comparisons are two kernels. Truth values are sorted as bytes.
// CHECK-DAG: stream.executable private @mxc_sort_1x40x1_i8_i32_by_0 {
// CHECK-DAG: stream.executable private @mxc_sort_1x40x1_i8_i32_by_1 {
// CHECK-LABEL: func.func @truth(
// CHECK: arith.extui %{{.*}} : i1 to i8
// CHECK: flow.dispatch @mxc_sort_1x40x1_i8_i32_by_0::
// CHECK: flow.dispatch @mxc_sort_1x40x1_i8_i32_by_1::
// CHECK: arith.trunci %{{.*}} : i8 to i1
func.func @truth(%x: tensor<40xi1>, %n: tensor<40xi32>) -> (tensor<40xi32>, tensor<40xi1>) {
  %a:2 = iree_linalg_ext.sort dimension(0) outs(%x, %n : tensor<40xi1>, tensor<40xi32>) {
  ^bb0(%p: i1, %q: i1, %i: i32, %j: i32):
    %l = arith.cmpi ult, %p, %q : i1
    iree_linalg_ext.yield %l : i1
  } -> tensor<40xi1>, tensor<40xi32>
  %b:2 = iree_linalg_ext.sort dimension(0) outs(%x, %n : tensor<40xi1>, tensor<40xi32>) {
  ^bb0(%p: i1, %q: i1, %i: i32, %j: i32):
    %l = arith.cmpi ugt, %p, %q : i1
    iree_linalg_ext.yield %l : i1
  } -> tensor<40xi1>, tensor<40xi32>
  return %a#1, %b#0 : tensor<40xi32>, tensor<40xi1>
}

// -----

// CHECK: module attributes {mxc.notes = ["IREE's code generator sorts, equal elements in any order: elements are f64; kernels sort i1, i8, i16, i32, i64, f16, bf16, f32", "IREE's code generator sorts, equal elements in any order: the comparison reads more than elements and constants"]}
// CHECK-LABEL: func.func @others(
// CHECK: iree_linalg_ext.sort
// CHECK: iree_linalg_ext.sort
func.func @others(%x: tensor<8xf64>, %y: tensor<8xi32>, %bits: i32) -> (tensor<8xf64>, tensor<8xi32>) {
  %a = iree_linalg_ext.sort dimension(0) outs(%x : tensor<8xf64>) {
  ^bb0(%p: f64, %q: f64):
    %l = arith.cmpf olt, %p, %q : f64
    iree_linalg_ext.yield %l : i1
  } -> tensor<8xf64>
  %b = iree_linalg_ext.sort dimension(0) outs(%y : tensor<8xi32>) {
  ^bb0(%p: i32, %q: i32):
    %u = arith.andi %p, %bits : i32
    %v = arith.andi %q, %bits : i32
    %l = arith.cmpi slt, %u, %v : i32
    iree_linalg_ext.yield %l : i1
  } -> tensor<8xi32>
  return %a, %b : tensor<8xf64>, tensor<8xi32>
}
