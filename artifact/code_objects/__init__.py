"""Code objects for AMD GPUs: ELF files with a note that lists the resources of each kernel.

Source: the LLVM documentation "User Guide for AMDGPU Backend", sections ELF Code Object and Code
Object Metadata.
"""
