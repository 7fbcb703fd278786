// RUN: mxc opt %s --passes mxc-lower-named-operations-to-gpu-kernels | filecheck %s
// RUN: mxc opt %s --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx1201}' | filecheck %s --check-prefix=NARROW

// A workgroup a group, for any number of pairs and of groups; the first lanes have an expert each.
// What is left of the reference is nothing.
// CHECK: workgroup_size = [256, 1, 1] subgroup_size = 64
// CHECK-NOT: util.func private @mxc.group_by_expert(
// CHECK: stream.executable private @mxc_groups_of_16_D_of_32 {
// CHECK: workgroups(%{{.*}}: index, %{{.*}}: index) -> (index, index, index)
// CHECK: memref.alloc() : memref<256xi32, #gpu.address_space<workgroup>>
// CHECK: memref.alloc() : memref<16xi32, #gpu.address_space<workgroup>>
// CHECK: amdgpu.lds_barrier
// A number of rows that comes with the call is a scalar more; shared memory has room for the most.
// CHECK: stream.executable private @mxc_groups_of_D_D_of_32 {
// CHECK: workgroups(%{{.*}}: index, %{{.*}}: index, %{{.*}}: index) -> (index, index, index)
// CHECK: memref.alloc() : memref<64xi32, #gpu.address_space<workgroup>>
// CHECK: util.func public @groups(
// CHECK: %[[MADE:.*]]:3 = flow.dispatch @mxc_groups_of_16_D_of_32::@mxc_groups_of_16_D_of_32[%{{.*}}, %{{.*}}](%arg0, %{{.*}}, %{{.*}})
// CHECK: util.return %[[MADE]]#0, %[[MADE]]#1, %[[MADE]]#2
// CHECK: util.func public @any_rows(
// CHECK: flow.dispatch @mxc_groups_of_D_D_of_32::@mxc_groups_of_D_D_of_32[%{{.*}}, %{{.*}}, %{{.*}}](%arg0, %arg3, %{{.*}}, %{{.*}})
// More experts than a workgroup has lanes stay as they are.
// CHECK: util.func public @too_many(
// CHECK: util.call @mxc.group_by_expert.2(
// NARROW: workgroup_size = [256, 1, 1] subgroup_size = 32
util.func private @mxc.group_by_expert(%chosen: tensor<?xi32>, %groups: tensor<?xi32>, %slots: tensor<?xi32>, %rows: index) -> (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>) attributes {mxc.operation = "group_by_expert", mxc.options = {experts = 32 : i64, most_rows = 16 : i64}, mxc.sizes = array<i64: 1, 0, 2, 0, 0, 0>} {
  util.return %groups, %slots, %chosen : tensor<?xi32>, tensor<?xi32>, tensor<?xi32>
}
util.func private @mxc.group_by_expert.1(%chosen: tensor<?xi32>, %groups: tensor<?xi32>, %slots: tensor<?xi32>, %rows: index) -> (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>) attributes {mxc.operation = "group_by_expert", mxc.options = {experts = 32 : i64, most_rows = 64 : i64}, mxc.sizes = array<i64: 1, 0, 2, 0, 0, 0>} {
  util.return %groups, %slots, %chosen : tensor<?xi32>, tensor<?xi32>, tensor<?xi32>
}
util.func private @mxc.group_by_expert.2(%chosen: tensor<?xi32>, %groups: tensor<?xi32>, %slots: tensor<?xi32>, %rows: index) -> (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>) attributes {mxc.operation = "group_by_expert", mxc.options = {experts = 1030 : i64, most_rows = 16 : i64}, mxc.sizes = array<i64: 1, 0, 2, 0, 0, 0>} {
  util.return %groups, %slots, %chosen : tensor<?xi32>, tensor<?xi32>, tensor<?xi32>
}
util.func public @groups(%chosen: tensor<?xi32>, %groups: tensor<?xi32>, %slots: tensor<?xi32>) -> (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>) {
  %rows = arith.constant 16 : index
  %0:3 = util.call @mxc.group_by_expert(%chosen, %groups, %slots, %rows) : (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>, index) -> (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
  util.return %0#0, %0#1, %0#2 : tensor<?xi32>, tensor<?xi32>, tensor<?xi32>
}
util.func public @any_rows(%chosen: tensor<?xi32>, %groups: tensor<?xi32>, %slots: tensor<?xi32>, %rows: index) -> tensor<?xi32> {
  %0:3 = util.call @mxc.group_by_expert.1(%chosen, %groups, %slots, %rows) : (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>, index) -> (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
  util.return %0#0 : tensor<?xi32>
}
util.func public @too_many(%chosen: tensor<?xi32>, %groups: tensor<?xi32>, %slots: tensor<?xi32>) -> tensor<?xi32> {
  %rows = arith.constant 16 : index
  %0:3 = util.call @mxc.group_by_expert.2(%chosen, %groups, %slots, %rows) : (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>, index) -> (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>)
  util.return %0#0 : tensor<?xi32>
}
