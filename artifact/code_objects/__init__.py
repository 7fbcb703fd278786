"""Code objects for AMD GPUs: ELF files whose note says what each kernel needs to run.

Source: the LLVM documentation "User Guide for AMDGPU Backend", sections ELF Code Object and Code
Object Metadata.
"""
