// RUN: mxc opt %s --passes "mxc-verify-packed-weights{min-bytes=512}" --split-input-file --verify-diagnostics

// A dequantized weight, written at load time and read back through a hoisted global.
flow.executable private @dequantize {
  flow.executable.export public @dequantize
  builtin.module {
    func.func @dequantize(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2x16xi8>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2xf8E8M0FNU>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x2x32xf32>>) {
      %b = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0], sizes = [8, 2, 16], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2x16xi8>> -> tensor<8x2x16xi8>
      %w = iree_tensor_ext.bitcast %b : tensor<8x2x16xi8> -> tensor<8x2x32xf4E2M1FN>
      %s = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0], sizes = [8, 2], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2xf8E8M0FNU>> -> tensor<8x2xf8E8M0FNU>
      %e = tensor.empty() : tensor<8x2x32xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(n, o, i) -> (n, o, i)>, affine_map<(n, o, i) -> (n, o)>, affine_map<(n, o, i) -> (n, o, i)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%w, %s : tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf32>) {
      ^bb0(%q: f4E2M1FN, %t: f8E8M0FNU, %o: f32):
        %1 = arith.scaling_extf %q, %t : f4E2M1FN, f8E8M0FNU to f32
        linalg.yield %1 : f32
      } -> tensor<8x2x32xf32>
      iree_tensor_ext.dispatch.tensor.store %y, %arg2, offsets = [0, 0, 0], sizes = [8, 2, 32], strides = [1, 1, 1] : tensor<8x2x32xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x2x32xf32>>
      return
    }
  }
}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<8x2xi8>
util.global private @hoisted : tensor<8x2x32xf32>
util.initializer {
  %w = util.global.load immutable @w : tensor<8x2x16xi8>
  %b = util.global.load immutable @s : tensor<8x2xi8>
  %s = flow.tensor.bitcast %b : tensor<8x2xi8> -> tensor<8x2xf8E8M0FNU>
  // expected-error @+1 {{dispatch @dequantize in @initializer writes a dequantized weight, tensor<8x2x32xf32> (2048 bytes), at run time}}
  %y = flow.dispatch @dequantize::@dequantize(%w, %s) : (tensor<8x2x16xi8>, tensor<8x2xf8E8M0FNU>) -> tensor<8x2x32xf32>
  util.global.store %y, @hoisted : tensor<8x2x32xf32>
  util.return
}

// -----

// A scale, repeated once for each element, twice.
flow.executable private @broadcast {
  flow.executable.export public @broadcast
  builtin.module {
    func.func @broadcast(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2xf8E8M0FNU>>, %arg1: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x2x32xf8E8M0FNU>>) {
      %s = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [8, 2], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x2xf8E8M0FNU>> -> tensor<8x2xf8E8M0FNU>
      %e = tensor.empty() : tensor<8x2x32xf8E8M0FNU>
      %y = linalg.broadcast ins(%s : tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf8E8M0FNU>) dimensions = [2]
      iree_tensor_ext.dispatch.tensor.store %y, %arg1, offsets = [0, 0, 0], sizes = [8, 2, 32], strides = [1, 1, 1] : tensor<8x2x32xf8E8M0FNU> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x2x32xf8E8M0FNU>>
      return
    }
  }
}
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<8x2xf8E8M0FNU>
util.func public @f() -> (tensor<8x2x32xf8E8M0FNU>, tensor<8x2x32xf8E8M0FNU>) {
  %s = util.global.load immutable @s : tensor<8x2xf8E8M0FNU>
  // expected-error @+1 {{writes a broadcast scale, tensor<8x2x32xf8E8M0FNU> (512 bytes), at run time; wanted the packed weight read by the contraction itself: pack it ahead of time (and 1 more)}}
  %y = flow.dispatch @broadcast::@broadcast(%s) : (tensor<8x2xf8E8M0FNU>) -> tensor<8x2x32xf8E8M0FNU>
  %z = flow.dispatch @broadcast::@broadcast(%s) : (tensor<8x2xf8E8M0FNU>) -> tensor<8x2x32xf8E8M0FNU>
  util.return %y, %z : tensor<8x2x32xf8E8M0FNU>, tensor<8x2x32xf8E8M0FNU>
}

// -----

// Weights of the chosen experts, copied for a contraction to read.
flow.executable private @gather {
  flow.executable.export public @gather
  builtin.module {
    func.func @gather(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<9x8x64xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xi32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x8x64xf32>>) {
      %w = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0, 0], sizes = [9, 8, 64], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<9x8x64xf32>> -> tensor<9x8x64xf32>
      %i = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0], sizes = [4], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xi32>> -> tensor<4xi32>
      %e = tensor.empty() : tensor<4x8x64xf32>
      %y = iree_linalg_ext.gather dimension_map = [0] ins(%w, %i : tensor<9x8x64xf32>, tensor<4xi32>) outs(%e : tensor<4x8x64xf32>) -> tensor<4x8x64xf32>
      iree_tensor_ext.dispatch.tensor.store %y, %arg2, offsets = [0, 0, 0], sizes = [4, 8, 64], strides = [1, 1, 1] : tensor<4x8x64xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x8x64xf32>>
      return
    }
  }
}
flow.executable private @matmul {
  flow.executable.export public @matmul
  builtin.module {
    func.func @matmul(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x64xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x8x64xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x8xf32>>) {
      %zero = arith.constant 0.0 : f32
      %x = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [4, 64], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x64xf32>> -> tensor<4x64xf32>
      %w = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0, 0], sizes = [4, 8, 64], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x8x64xf32>> -> tensor<4x8x64xf32>
      %e = tensor.empty() : tensor<4x8xf32>
      %a = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(g, n, k) -> (g, k)>, affine_map<(g, n, k) -> (g, n, k)>, affine_map<(g, n, k) -> (g, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<4x64xf32>, tensor<4x8x64xf32>) outs(%a : tensor<4x8xf32>) {
      ^bb0(%p: f32, %q: f32, %o: f32):
        %1 = arith.mulf %p, %q : f32
        %2 = arith.addf %o, %1 : f32
        linalg.yield %2 : f32
      } -> tensor<4x8xf32>
      iree_tensor_ext.dispatch.tensor.store %y, %arg2, offsets = [0, 0], sizes = [4, 8], strides = [1, 1] : tensor<4x8xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x8xf32>>
      return
    }
  }
}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<9x8x64xf32>
util.func public @f(%x: tensor<4x64xf32>, %i: tensor<4xi32>) -> tensor<4x8xf32> {
  %w = util.global.load immutable @w : tensor<9x8x64xf32>
  // expected-error @+1 {{writes a copy of a weight, tensor<4x8x64xf32> (8192 bytes), which a contraction reads back; wanted the packed weight read by the contraction itself: fuse it into the contraction}}
  %g = flow.dispatch @gather::@gather(%w, %i) : (tensor<9x8x64xf32>, tensor<4xi32>) -> tensor<4x8x64xf32>
  %y = flow.dispatch @matmul::@matmul(%x, %g) : (tensor<4x64xf32>, tensor<4x8x64xf32>) -> tensor<4x8xf32>
  util.return %y : tensor<4x8xf32>
}
