"""Other libraries' models with weft's attention, and weft's models in other libraries."""
