// RUN: mxc opt %s --verify-diagnostics --passes mxc-check-operations

util.func @pooling(%x: tensor<1x8x8x32xf4E2M1FN>, %window: tensor<2x2xf4E2M1FN>, %out: tensor<1x4x4x32xf4E2M1FN>) -> tensor<1x4x4x32xf4E2M1FN> {
  // expected-error @+1 {{linalg.pooling_nhwc_max has no MX support: it reads tensor<1x8x8x32xf4E2M1FN>, tensor<2x2xf4E2M1FN>, tensor<1x4x4x32xf4E2M1FN> and makes tensor<1x4x4x32xf4E2M1FN>}}
  %r = linalg.pooling_nhwc_max {strides = dense<2> : tensor<2xi64>} ins(%x, %window : tensor<1x8x8x32xf4E2M1FN>, tensor<2x2xf4E2M1FN>) outs(%out : tensor<1x4x4x32xf4E2M1FN>) -> tensor<1x4x4x32xf4E2M1FN>
  util.return %r : tensor<1x4x4x32xf4E2M1FN>
}

// -----

util.func @convolution(%x: tensor<1x8x8x32xf32>, %w: tensor<3x3x32x16xf4E2M1FN>, %out: tensor<1x6x6x16xf32>) -> tensor<1x6x6x16xf32> {
  // expected-error @+1 {{linalg.conv_2d_nhwc_hwcf has no MX support: it reads tensor<1x8x8x32xf32>, tensor<3x3x32x16xf4E2M1FN>}}
  %r = linalg.conv_2d_nhwc_hwcf ins(%x, %w : tensor<1x8x8x32xf32>, tensor<3x3x32x16xf4E2M1FN>) outs(%out : tensor<1x6x6x16xf32>) -> tensor<1x6x6x16xf32>
  util.return %r : tensor<1x6x6x16xf32>
}

// -----

// Codes without scales, on whole tensors.
util.func @sum_of_codes(%x: tensor<4x32xf6E2M3FN>, %y: tensor<4x32xf6E2M3FN>) -> tensor<4x32xf6E2M3FN> {
  // expected-error @+1 {{arith.addf has no MX support: it reads tensor<4x32xf6E2M3FN>, tensor<4x32xf6E2M3FN>}}
  %r = arith.addf %x, %y : tensor<4x32xf6E2M3FN>
  util.return %r : tensor<4x32xf6E2M3FN>
}

// -----

util.func @in_a_body(%x: tensor<4x32xf4E2M1FN>, %out: tensor<4x32xf4E2M1FN>) -> tensor<4x32xf4E2M1FN> {
  %r = linalg.generic {indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x32xf4E2M1FN>) outs(%out : tensor<4x32xf4E2M1FN>) {
  ^bb0(%a: f4E2M1FN, %o: f4E2M1FN):
    // expected-error @+1 {{arith.maximumf in the body of linalg.generic has no MX support: it reads f4E2M1FN, f4E2M1FN and makes f4E2M1FN}}
    %y = arith.maximumf %a, %o : f4E2M1FN
    linalg.yield %y : f4E2M1FN
  } -> tensor<4x32xf4E2M1FN>
  util.return %r : tensor<4x32xf4E2M1FN>
}

// -----

util.func @sort(%x: tensor<4x32xf4E2M1FN>) -> tensor<4x32xf4E2M1FN> {
  // expected-error @+1 {{iree_linalg_ext.sort has no MX support: it reads tensor<4x32xf4E2M1FN>}}
  %r = iree_linalg_ext.sort dimension(1) outs(%x : tensor<4x32xf4E2M1FN>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN):
    %c = arith.cmpf ogt, %a, %b : f4E2M1FN
    iree_linalg_ext.yield %c : i1
  } -> tensor<4x32xf4E2M1FN>
  util.return %r : tensor<4x32xf4E2M1FN>
}

// -----

util.func @pad(%x: tensor<4x32xf4E2M1FN>) -> tensor<4x64xf4E2M1FN> {
  %zero = arith.constant 0.0 : f4E2M1FN
  // expected-error @+1 {{tensor.pad has no MX support: it reads tensor<4x32xf4E2M1FN>}}
  %r = tensor.pad %x low[0, 0] high[0, 32] {
  ^bb0(%i: index, %j: index):
    tensor.yield %zero : f4E2M1FN
  } : tensor<4x32xf4E2M1FN> to tensor<4x64xf4E2M1FN>
  util.return %r : tensor<4x64xf4E2M1FN>
}

// -----

util.func @scales(%x: tensor<4xf32>, %out: tensor<4xf8E8M0FNU>) -> tensor<4xf8E8M0FNU> {
  %r = linalg.generic {indexing_maps = [affine_map<(m) -> (m)>, affine_map<(m) -> (m)>], iterator_types = ["parallel"]}
      ins(%x : tensor<4xf32>) outs(%out : tensor<4xf8E8M0FNU>) {
  ^bb0(%a: f32, %o: f8E8M0FNU):
    // expected-error @+1 {{converts f32 to f8E8M0FNU, which IREE 3.13 rounds otherwise than frameworks}}
    %y = arith.truncf %a : f32 to f8E8M0FNU
    linalg.yield %y : f8E8M0FNU
  } -> tensor<4xf8E8M0FNU>
  util.return %r : tensor<4xf8E8M0FNU>
}

// -----

util.func @tensor_of_scales(%x: tensor<4xbf16>) -> tensor<4xf8E8M0FNU> {
  // expected-error @+1 {{converts tensor<4xbf16> to tensor<4xf8E8M0FNU>, which IREE 3.13 rounds otherwise than frameworks}}
  %y = arith.truncf %x : tensor<4xbf16> to tensor<4xf8E8M0FNU>
  util.return %y : tensor<4xf8E8M0FNU>
}
