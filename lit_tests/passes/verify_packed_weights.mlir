// RUN: mxc opt %s --passes mxc-verify-packed-weights --split-input-file | filecheck %s
// RUN: mxc opt %s --passes "mxc-verify-packed-weights{strict=false min-bytes=0}" --split-input-file | filecheck %s --check-prefix=ALL

// The contraction reads the packed weight itself.
// CHECK: flow.dispatch @matmul::@matmul
// ALL: flow.dispatch @matmul::@matmul
// ALL-NOT: mxc.fallback
flow.executable private @matmul {
  flow.executable.export public @matmul
  builtin.module {
    func.func @matmul(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<16x2x32xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2x16xi8>>, %arg2: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2xf8E8M0FNU>>, %arg3: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<16x8xf32>>) {
      %zero = arith.constant 0.0 : f32
      %x = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0], sizes = [16, 2, 32], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<16x2x32xf32>> -> tensor<16x2x32xf32>
      %b = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0, 0], sizes = [8, 2, 16], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2x16xi8>> -> tensor<8x2x16xi8>
      %w = iree_tensor_ext.bitcast %b : tensor<8x2x16xi8> -> tensor<8x2x32xf4E2M1FN>
      %s = iree_tensor_ext.dispatch.tensor.load %arg2, offsets = [0, 0], sizes = [8, 2], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2xf8E8M0FNU>> -> tensor<8x2xf8E8M0FNU>
      %e = tensor.empty() : tensor<16x8xf32>
      %a = linalg.fill ins(%zero : f32) outs(%e : tensor<16x8xf32>) -> tensor<16x8xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(m, n, o, i) -> (m, o, i)>, affine_map<(m, n, o, i) -> (n, o, i)>, affine_map<(m, n, o, i) -> (n, o)>, affine_map<(m, n, o, i) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x, %w, %s : tensor<16x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%a : tensor<16x8xf32>) {
      ^bb0(%p: f32, %q: f4E2M1FN, %t: f8E8M0FNU, %o: f32):
        %1 = arith.scaling_extf %q, %t : f4E2M1FN, f8E8M0FNU to f32
        %2 = arith.mulf %p, %1 : f32
        %3 = arith.addf %o, %2 : f32
        linalg.yield %3 : f32
      } -> tensor<16x8xf32>
      iree_tensor_ext.dispatch.tensor.store %y, %arg3, offsets = [0, 0], sizes = [16, 8], strides = [1, 1] : tensor<16x8xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<16x8xf32>>
      return
    }
  }
}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<8x2xi8>
util.func public @f(%x: tensor<16x2x32xf32>) -> tensor<16x8xf32> {
  %w = util.global.load immutable @w : tensor<8x2x16xi8>
  %b = util.global.load immutable @s : tensor<8x2xi8>
  %s = flow.tensor.bitcast %b : tensor<8x2xi8> -> tensor<8x2xf8E8M0FNU>
  %y = flow.dispatch @matmul::@matmul(%x, %w, %s) : (tensor<16x2x32xf32>, tensor<8x2x16xi8>, tensor<8x2xf8E8M0FNU>) -> tensor<16x8xf32>
  util.return %y : tensor<16x8xf32>
}

// -----

// Rows of an embedding are activations: no contraction reads them as they are.
// CHECK: flow.dispatch @rows::@rows
// ALL: flow.dispatch @rows::@rows
// ALL-NOT: mxc.fallback
flow.executable private @rows {
  flow.executable.export public @rows
  builtin.module {
    func.func @rows(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<99x64xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xi32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x64xf32>>) {
      %w = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [99, 64], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<99x64xf32>> -> tensor<99x64xf32>
      %i = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0], sizes = [4], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xi32>> -> tensor<4xi32>
      %e = tensor.empty() : tensor<4x64xf32>
      %y = iree_linalg_ext.gather dimension_map = [0] ins(%w, %i : tensor<99x64xf32>, tensor<4xi32>) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
      iree_tensor_ext.dispatch.tensor.store %y, %arg2, offsets = [0, 0], sizes = [4, 64], strides = [1, 1] : tensor<4x64xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x64xf32>>
      return
    }
  }
}
util.global private @table = #flow.parameter.named<"model"::"table"> : tensor<99x64xf32>
util.func public @f(%i: tensor<4xi32>) -> tensor<4x64xf32> {
  %w = util.global.load immutable @table : tensor<99x64xf32>
  %y = flow.dispatch @rows::@rows(%w, %i) : (tensor<99x64xf32>, tensor<4xi32>) -> tensor<4x64xf32>
  util.return %y : tensor<4x64xf32>
}

// -----

// After the first arithmetic the rows of an embedding are activations, which may be contracted.
// CHECK: flow.dispatch @product::@product
// ALL: flow.dispatch @gain::@gain
// ALL-NOT: mxc.fallback
// ALL: flow.dispatch @product::@product
// ALL-NOT: mxc.fallback
flow.executable private @gain {
  flow.executable.export public @gain
  builtin.module {
    func.func @gain(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<99x64xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xi32>>, %arg2: !iree_tensor_ext.dispatch.tensor<readonly:tensor<64xf32>>, %arg3: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x64xf32>>) {
      %w = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [99, 64], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<99x64xf32>> -> tensor<99x64xf32>
      %i = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0], sizes = [4], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xi32>> -> tensor<4xi32>
      %g = iree_tensor_ext.dispatch.tensor.load %arg2, offsets = [0], sizes = [64], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<64xf32>> -> tensor<64xf32>
      %e = tensor.empty() : tensor<4x64xf32>
      %r = iree_linalg_ext.gather dimension_map = [0] ins(%w, %i : tensor<99x64xf32>, tensor<4xi32>) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (k)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]} ins(%r, %g : tensor<4x64xf32>, tensor<64xf32>) outs(%e : tensor<4x64xf32>) {
      ^bb0(%p: f32, %q: f32, %o: f32):
        %1 = arith.mulf %p, %q : f32
        linalg.yield %1 : f32
      } -> tensor<4x64xf32>
      iree_tensor_ext.dispatch.tensor.store %y, %arg3, offsets = [0, 0], sizes = [4, 64], strides = [1, 1] : tensor<4x64xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x64xf32>>
      return
    }
  }
}
flow.executable private @product {
  flow.executable.export public @product
  builtin.module {
    func.func @product(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x64xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x8xf32>>) {
      %zero = arith.constant 0.0 : f32
      %x = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [4, 64], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x64xf32>> -> tensor<4x64xf32>
      %w = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0], sizes = [8, 64], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x64xf32>> -> tensor<8x64xf32>
      %e = tensor.empty() : tensor<4x8xf32>
      %a = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
      %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : tensor<4x64xf32>, tensor<8x64xf32>) outs(%a : tensor<4x8xf32>) -> tensor<4x8xf32>
      iree_tensor_ext.dispatch.tensor.store %y, %arg2, offsets = [0, 0], sizes = [4, 8], strides = [1, 1] : tensor<4x8xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x8xf32>>
      return
    }
  }
}
util.global private @table = #flow.parameter.named<"model"::"table"> : tensor<99x64xf32>
util.global private @norm = #flow.parameter.named<"model"::"norm"> : tensor<64xf32>
util.func public @f(%i: tensor<4xi32>, %v: tensor<8x64xf32>) -> tensor<4x8xf32> {
  %w = util.global.load immutable @table : tensor<99x64xf32>
  %g = util.global.load immutable @norm : tensor<64xf32>
  %x = flow.dispatch @gain::@gain(%w, %i, %g) : (tensor<99x64xf32>, tensor<4xi32>, tensor<64xf32>) -> tensor<4x64xf32>
  %y = flow.dispatch @product::@product(%x, %v) : (tensor<4x64xf32>, tensor<8x64xf32>) -> tensor<4x8xf32>
  util.return %y : tensor<4x8xf32>
}

// -----

// A small copy is below min-bytes; without that limit it is marked.
// CHECK: flow.dispatch @copy::@copy
// CHECK-NOT: mxc.fallback
// ALL: flow.dispatch @copy::@copy
// ALL-SAME: mxc.fallback = "dispatch @copy in @f writes a copy of a weight, tensor<8x2xi8> (16 bytes), at run time
flow.executable private @copy {
  flow.executable.export public @copy
  builtin.module {
    func.func @copy(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x8xi8>>, %arg1: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x2xi8>>) {
      %w = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [2, 8], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<2x8xi8>> -> tensor<2x8xi8>
      %e = tensor.empty() : tensor<8x2xi8>
      %y = linalg.transpose ins(%w : tensor<2x8xi8>) outs(%e : tensor<8x2xi8>) permutation = [1, 0]
      iree_tensor_ext.dispatch.tensor.store %y, %arg1, offsets = [0, 0], sizes = [8, 2], strides = [1, 1] : tensor<8x2xi8> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x2xi8>>
      return
    }
  }
}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<2x8xi8>
util.func public @f() -> tensor<8x2xi8> {
  %w = util.global.load immutable @w : tensor<2x8xi8>
  %y = flow.dispatch @copy::@copy(%w) : (tensor<2x8xi8>) -> tensor<8x2xi8>
  util.return %y : tensor<8x2xi8>
}
