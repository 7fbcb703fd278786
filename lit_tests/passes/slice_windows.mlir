// RUN: mxc opt %s --split-input-file --passes mxc-slice-windows | filecheck %s

// A result one element wide: of a width of 4, a window of 3 reads 3. The height of 7 is read whole,
// by windows that move.
// CHECK-LABEL: @one_wide
// CHECK: %[[N:.*]] = tensor.dim %[[X:.*]], %{{.*}} : tensor<?x4x7x4xf32>
// CHECK: %[[PART:.*]] = tensor.extract_slice %[[X]][0, 0, 0, 0] [%[[N]], 4, 7, 3] [1, 1, 1, 1] : tensor<?x4x7x4xf32> to tensor<?x4x7x3xf32>
// CHECK: linalg.conv_2d_nchw_fchw {{.*}} ins(%[[PART]], %{{.*}} : tensor<?x4x7x3xf32>, tensor<8x4x3x3xf32>)
func.func @one_wide(%x: tensor<?x4x7x4xf32>, %w: tensor<8x4x3x3xf32>, %acc: tensor<?x8x3x1xf32>) -> tensor<?x8x3x1xf32> {
  %y = linalg.conv_2d_nchw_fchw {strides = dense<2> : tensor<2xi64>} ins(%x, %w : tensor<?x4x7x4xf32>, tensor<8x4x3x3xf32>) outs(%acc : tensor<?x8x3x1xf32>) -> tensor<?x8x3x1xf32>
  func.return %y : tensor<?x8x3x1xf32>
}

// -----

// CHECK-LABEL: @wide
// CHECK-NOT: tensor.extract_slice
// CHECK: return
func.func @wide(%x: tensor<?x4x7x6xf32>, %w: tensor<8x4x3x3xf32>, %acc: tensor<?x8x3x2xf32>) -> tensor<?x8x3x2xf32> {
  %y = linalg.conv_2d_nchw_fchw {strides = dense<2> : tensor<2xi64>} ins(%x, %w : tensor<?x4x7x6xf32>, tensor<8x4x3x3xf32>) outs(%acc : tensor<?x8x3x2xf32>) -> tensor<?x8x3x2xf32>
  func.return %y : tensor<?x8x3x2xf32>
}

// -----

// A scale of a block of 32 is read by the number of its element divided by 32: no window.
// CHECK-LABEL: @blocks
// CHECK-NOT: tensor.extract_slice
// CHECK: return
func.func @blocks(%x: tensor<1x64xf32>, %s: tensor<1x4xf32>, %out: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %y = linalg.generic {indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k floordiv 32)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%x, %s : tensor<1x64xf32>, tensor<1x4xf32>) outs(%out : tensor<1x64xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    linalg.yield %p : f32
  } -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}
