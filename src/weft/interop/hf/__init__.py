"""Hugging Face Transformers: weft's attention in its models, weft's models as its own.

Importing this package needs Transformers (`pip install 'weft[hf]'`).
"""

from weft.interop.hf import required as _required  # noqa: F401  # first: says what to install
