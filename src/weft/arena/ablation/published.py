"""The published study of modifications, Narang et al. 2021, to compare with our ranking.

The models of the study: an encoder and a decoder of 12 layers each, pre-trained by span corruption
on C4. `early` is the held-out log-perplexity after 65,536 of 524,288 steps, mean and standard
deviation of five runs; `final` that of one whole run; `superglue` the average after fine-tuning.
Other data, size and task than anything trained here: ranks may be compared, numbers may not.

Source: Do Transformer Modifications Transfer Across Implementations and Applications?,
https://arxiv.org/abs/2102.11972, table 1. Its operations of the product key memory (386.6) are an
artefact of the implementation, as it says itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import WeftError
from weft.registry import suggest

SOURCE = "Narang et al. 2021, https://arxiv.org/abs/2102.11972, table 1"
BASE = "vanilla"


@dataclass(frozen=True)
class Published:
    """One row of the table."""

    name: str
    parameters: int  # millions
    operations: float  # 10¹² each step
    steps_per_second: float
    early: float
    spread: float
    final: float
    superglue: float


STUDY = (
    Published("vanilla", 223, 11.1, 3.50, 2.182, 0.005, 1.838, 71.66),
    Published("GeLU", 223, 11.1, 3.58, 2.179, 0.003, 1.838, 75.79),
    Published("Swish", 223, 11.1, 3.62, 2.186, 0.003, 1.847, 73.77),
    Published("ELU", 223, 11.1, 3.56, 2.270, 0.007, 1.932, 67.83),
    Published("GLU", 223, 11.1, 3.59, 2.174, 0.003, 1.814, 74.20),
    Published("GeGLU", 223, 11.1, 3.55, 2.130, 0.006, 1.792, 75.96),
    Published("ReGLU", 223, 11.1, 3.57, 2.145, 0.004, 1.803, 76.17),
    Published("SeLU", 223, 11.1, 3.55, 2.315, 0.004, 1.948, 68.76),
    Published("SwiGLU", 223, 11.1, 3.53, 2.127, 0.003, 1.789, 76.00),
    Published("LiGLU", 223, 11.1, 3.59, 2.149, 0.005, 1.798, 75.34),
    Published("Sigmoid", 223, 11.1, 3.63, 2.291, 0.019, 1.867, 74.31),
    Published("Softplus", 223, 11.1, 3.47, 2.207, 0.011, 1.850, 72.45),
    Published("RMSNorm", 223, 11.1, 3.68, 2.167, 0.008, 1.821, 75.45),
    Published("ReZero", 223, 11.1, 3.51, 2.262, 0.003, 1.939, 61.69),
    Published("ReZero + LayerNorm", 223, 11.1, 3.26, 2.223, 0.006, 1.858, 70.42),
    Published("ReZero + RMSNorm", 223, 11.1, 3.34, 2.221, 0.009, 1.875, 70.33),
    Published("Fixup", 223, 11.1, 2.95, 2.382, 0.012, 2.067, 58.56),
    Published("24 layers, hidden 1536, 6 heads", 224, 11.1, 3.33, 2.200, 0.007, 1.843, 74.89),
    Published("18 layers, hidden 2048, 8 heads", 223, 11.1, 3.38, 2.185, 0.005, 1.831, 76.45),
    Published("8 layers, hidden 4608, 18 heads", 223, 11.1, 3.69, 2.190, 0.005, 1.847, 74.58),
    Published("6 layers, hidden 6144, 24 heads", 223, 11.1, 3.70, 2.201, 0.010, 1.857, 73.55),
    Published("block sharing", 65, 11.1, 3.91, 2.497, 0.037, 2.164, 64.50),
    Published("block sharing + factorised embedding", 45, 9.4, 4.21, 2.631, 0.305, 2.183, 60.84),
    Published(
        "block sharing + factorised and shared embedding", 20, 9.1, 4.37, 2.907, 0.313, 2.385, 53.95
    ),
    Published("encoder only block sharing", 170, 11.1, 3.68, 2.298, 0.023, 1.929, 69.60),
    Published("decoder only block sharing", 144, 11.1, 3.70, 2.352, 0.029, 2.082, 67.93),
    Published("factorised embedding", 227, 9.4, 3.80, 2.208, 0.006, 1.855, 70.41),
    Published("factorised and shared embedding", 202, 9.1, 3.92, 2.320, 0.010, 1.952, 68.69),
    Published("tied inputs", 248, 11.1, 3.55, 2.192, 0.002, 1.840, 71.70),
    Published("tied decoder input and output", 248, 11.1, 3.57, 2.187, 0.007, 1.827, 74.86),
    Published("untied embeddings", 273, 11.1, 3.53, 2.195, 0.005, 1.834, 72.99),
    Published("adaptive input", 204, 9.2, 3.55, 2.250, 0.002, 1.899, 66.57),
    Published("adaptive softmax", 204, 9.2, 3.60, 2.364, 0.005, 1.982, 72.91),
    Published("adaptive softmax without projection", 223, 10.8, 3.43, 2.229, 0.009, 1.914, 71.82),
    Published("mixture of softmaxes", 232, 16.3, 2.24, 2.227, 0.017, 1.821, 76.77),
    Published("transparent attention", 223, 11.1, 3.33, 2.181, 0.014, 1.874, 54.31),
    Published("dynamic convolution", 257, 11.8, 2.65, 2.403, 0.009, 2.047, 58.30),
    Published("lightweight convolution", 224, 10.4, 4.07, 2.370, 0.010, 1.989, 63.07),
    Published("Evolved Transformer", 217, 9.9, 3.09, 2.220, 0.003, 1.863, 73.67),
    Published("Synthesizer dense", 224, 11.4, 3.47, 2.334, 0.021, 1.962, 61.03),
    Published("Synthesizer dense plus", 243, 12.6, 3.22, 2.191, 0.010, 1.840, 73.98),
    Published("Synthesizer dense plus alpha", 243, 12.6, 3.01, 2.180, 0.007, 1.828, 74.25),
    Published("Synthesizer factorised", 207, 10.1, 3.94, 2.341, 0.017, 1.968, 62.78),
    Published("Synthesizer random", 254, 10.1, 4.08, 2.326, 0.012, 2.009, 54.27),
    Published("Synthesizer random plus", 292, 12.0, 3.63, 2.189, 0.004, 1.842, 73.32),
    Published("Synthesizer random plus alpha", 292, 12.0, 3.42, 2.186, 0.007, 1.828, 75.24),
    Published("Universal Transformer", 84, 40.0, 0.88, 2.406, 0.036, 2.053, 70.13),
    Published("mixture of experts", 648, 11.7, 3.20, 2.148, 0.006, 1.785, 74.55),
    Published("Switch Transformer", 1100, 11.7, 3.18, 2.135, 0.007, 1.758, 75.38),
    Published("Funnel Transformer", 223, 1.9, 4.30, 2.288, 0.008, 1.918, 67.34),
    Published("Weighted Transformer", 280, 71.0, 0.59, 2.378, 0.021, 1.989, 69.04),
    Published("product key memory", 421, 386.6, 0.25, 2.155, 0.003, 1.798, 75.16),
)


def published(name: str) -> Published:
    """The row of this name."""
    known = {row.name: row for row in STUDY}
    if name not in known:
        raise WeftError(f"the study has no row {name!r}; {suggest(name, known)}")
    return known[name]
