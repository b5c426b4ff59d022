"""Little tensors that tests of several folders are about."""

import numpy as np

import sfumato as sf


def tensor(names, values, known=None):
    """The known cells of an array, of modes with these names."""
    known = np.ones(values.shape, bool) if known is None else known
    modes = tuple(sf.Mode(name, size) for name, size in zip(names, values.shape, strict=True))
    return sf.SparseTensor(np.stack(np.nonzero(known)), values[known], modes)
