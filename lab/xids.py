"""What the NVIDIA driver logs, and what CUDA then says to a program, for the Xids that the lab pretends.

Wording: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) and kernel logs of A100 and H100 nodes.
"""

from dataclasses import dataclass

PCI_ADDRESSES = ("0000:1b:00", "0000:43:00", "0000:52:00", "0000:61:00", "0000:9d:00", "0000:c3:00", "0000:d1:00", "0000:df:00")
"""Of GPUs 0 to 7, as on an eight-GPU H100 node."""


@dataclass(frozen=True)
class XidTexts:
    """One failure of a GPU."""

    lines: tuple[tuple[int, str], ...]
    """Xid and message of each line, in order. One failure often logs several."""
    cuda: str
    """CUDA's name of the error."""

    @property
    def cuda_text(self) -> str:
        """The message of the exception that PyTorch raises (c10/cuda/CUDAException.cpp)."""
        return f"CUDA error: {self.cuda}\n{HINTS}"


HINTS = """\
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

ECC = "uncorrectable ECC error encountered"
REMAP = (63, "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.")
DOUBLE_BIT = (48, "pid={pid}, name=python, DBE (double bit error) detected in the framebuffer: uncorrectable ECC error")

XIDS = {
    31: XidTexts(
        ((31, "pid={pid}, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2c_5c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"),),  # noqa: E501 -- one line in the log
        "an illegal memory access was encountered",
    ),
    # A double-bit error is logged as 48 and, since A100, followed by the row remapper and the containment: NVIDIA's
    # "GPU memory error management" has 94 where only the process is lost and 95 where the GPU is.
    48: XidTexts((DOUBLE_BIT, REMAP, (94, "pid={pid}, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No")), ECC),
    79: XidTexts(
        ((79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),),
        "unspecified launch failure",
    ),
    94: XidTexts(((94, "pid={pid}, name=python, Contained: SM (0x1). RST: No, D-RST: No"), REMAP), ECC),
    95: XidTexts((DOUBLE_BIT, (95, "pid={pid}, name=python, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")), ECC),
}
