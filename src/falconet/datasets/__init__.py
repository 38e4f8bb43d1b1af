"""Data sets: readers of MovieLens, downloads, synthetic data. numpy, pyarrow and the standard library alone."""
