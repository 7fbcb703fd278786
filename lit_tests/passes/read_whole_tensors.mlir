// RUN: mxc opt %s --split-input-file --passes mxc-read-whole-tensors | filecheck %s

// Columns from the second one on; the lookup is in the whole rows.
// CHECK-LABEL: @a_part_of_a_buffer
// CHECK: %[[W:.*]] = iree_tensor_ext.dispatch.tensor.load %{{.*}}, offsets = [0, 0], sizes = [%{{.*}}, 8], strides = [1, 1] {{.*}} -> tensor<?x8xf32>
// CHECK: linalg.index 1
// CHECK: %[[TWO:.*]] = arith.constant 2 : index
// CHECK: %[[AT:.*]] = arith.addi %{{.*}}, %[[TWO]] : index
// CHECK: tensor.extract %[[W]][%{{.*}}, %[[AT]]] : tensor<?x8xf32>
// CHECK-NOT: tensor<?x4xf32>
func.func @a_part_of_a_buffer(%xb: !iree_tensor_ext.dispatch.tensor<readonly:tensor<?x8xf32>>, %ib: !iree_tensor_ext.dispatch.tensor<readonly:tensor<3xi32>>, %yb: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<3x4xf32>>, %n: index) {
  %x = flow.dispatch.tie_shape %xb : !iree_tensor_ext.dispatch.tensor<readonly:tensor<?x8xf32>>{%n}
  %part = iree_tensor_ext.dispatch.tensor.load %x, offsets = [0, 2], sizes = [%n, 4], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<?x8xf32>>{%n} -> tensor<?x4xf32>
  %ids = iree_tensor_ext.dispatch.tensor.load %ib, offsets = [0], sizes = [3], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<3xi32>> -> tensor<3xi32>
  %e = tensor.empty() : tensor<3x4xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(s, k) -> (s)>, affine_map<(s, k) -> (s, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%ids : tensor<3xi32>) outs(%e : tensor<3x4xf32>) {
  ^bb0(%id: i32, %o: f32):
    %i = arith.index_cast %id : i32 to index
    %k = linalg.index 1 : index
    %v = tensor.extract %part[%i, %k] : tensor<?x4xf32>
    linalg.yield %v : f32
  } -> tensor<3x4xf32>
  iree_tensor_ext.dispatch.tensor.store %y, %yb, offsets = [0, 0], sizes = [3, 4], strides = [1, 1] : tensor<3x4xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<3x4xf32>>
  return
}

// -----

// A column of every second row, of a slice that the dispatch cuts itself. A whole tensor stays.
// CHECK-LABEL: @a_slice_without_a_dimension
// CHECK: %[[W:.*]] = iree_tensor_ext.dispatch.tensor.load %{{.*}}, offsets = [0, 0], sizes = [6, 8], strides = [1, 1] {{.*}} -> tensor<6x8xf32>
// CHECK-NOT: tensor.extract_slice
// CHECK: arith.muli
// CHECK: tensor.extract %[[W]][%{{.*}}, %{{.*}}] : tensor<6x8xf32>
func.func @a_slice_without_a_dimension(%xb: !iree_tensor_ext.dispatch.tensor<readonly:tensor<6x8xf32>>, %ib: !iree_tensor_ext.dispatch.tensor<readonly:tensor<3xi32>>, %yb: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<3xf32>>) {
  %x = iree_tensor_ext.dispatch.tensor.load %xb, offsets = [0, 0], sizes = [6, 8], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<6x8xf32>> -> tensor<6x8xf32>
  %part = tensor.extract_slice %x[1, 5] [3, 1] [2, 1] : tensor<6x8xf32> to tensor<3xf32>
  %ids = iree_tensor_ext.dispatch.tensor.load %ib, offsets = [0], sizes = [3], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<3xi32>> -> tensor<3xi32>
  %e = tensor.empty() : tensor<3xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(s) -> (s)>, affine_map<(s) -> (s)>],
      iterator_types = ["parallel"]}
      ins(%ids : tensor<3xi32>) outs(%e : tensor<3xf32>) {
  ^bb0(%id: i32, %o: f32):
    %i = arith.index_cast %id : i32 to index
    %v = tensor.extract %part[%i] : tensor<3xf32>
    linalg.yield %v : f32
  } -> tensor<3xf32>
  iree_tensor_ext.dispatch.tensor.store %y, %yb, offsets = [0], sizes = [3], strides = [1] : tensor<3xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<3xf32>>
  return
}

// -----

// Two lookups in one slice, and one in a slice of it.
// CHECK-LABEL: @several_lookups
// CHECK-NOT: tensor.extract_slice
// CHECK-COUNT-3: tensor.extract %{{.*}}[%{{.*}}, %{{.*}}] : tensor<6x8xf32>
func.func @several_lookups(%xb: !iree_tensor_ext.dispatch.tensor<readonly:tensor<6x8xf32>>, %ib: !iree_tensor_ext.dispatch.tensor<readonly:tensor<3xi32>>, %yb: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<3xf32>>) {
  %x = iree_tensor_ext.dispatch.tensor.load %xb, offsets = [0, 0], sizes = [6, 8], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<6x8xf32>> -> tensor<6x8xf32>
  %part = tensor.extract_slice %x[1, 2] [4, 6] [1, 1] : tensor<6x8xf32> to tensor<4x6xf32>
  %inner = tensor.extract_slice %part[1, 1] [3, 1] [1, 1] : tensor<4x6xf32> to tensor<3xf32>
  %ids = iree_tensor_ext.dispatch.tensor.load %ib, offsets = [0], sizes = [3], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<3xi32>> -> tensor<3xi32>
  %e = tensor.empty() : tensor<3xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(s) -> (s)>, affine_map<(s) -> (s)>],
      iterator_types = ["parallel"]}
      ins(%ids : tensor<3xi32>) outs(%e : tensor<3xf32>) {
  ^bb0(%id: i32, %o: f32):
    %i = arith.index_cast %id : i32 to index
    %j = linalg.index 0 : index
    %a = tensor.extract %part[%i, %j] : tensor<4x6xf32>
    %b = tensor.extract %part[%j, %i] : tensor<4x6xf32>
    %c = tensor.extract %inner[%i] : tensor<3xf32>
    %ab = arith.addf %a, %b : f32
    %v = arith.addf %ab, %c : f32
    linalg.yield %v : f32
  } -> tensor<3xf32>
  iree_tensor_ext.dispatch.tensor.store %y, %yb, offsets = [0], sizes = [3], strides = [1] : tensor<3xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<3xf32>>
  return
}
