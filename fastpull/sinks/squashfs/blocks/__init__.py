"""The data blocks and fragment blocks of a layer: cut, compress, write, serialize."""
