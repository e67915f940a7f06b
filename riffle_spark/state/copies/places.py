"""The places for which the bytes of local files are encrypted."""

from riffle_spark.state.copies.disk import MERGED, STORED, is_block
from riffle_spark.state.copies.stack import PART, STACKS
from riffle_spark.state.log import paths
from riffle_spark.state.objects.place import Place


def encryption_place(file: str, store: str, key_group: int) -> Place:
    """Return the place that a key-group's part is encrypted for.

    ``file`` is the name of its local file, as in ``StackedPart.file``. All key-groups of a block have the same place.
    """
    folder, _, name = file.partition("/")
    if name.endswith(STORED + paths.BLOCK):
        return paths.block_place(store, name.partition(".")[0] + paths.BLOCK)
    if is_block(name):
        return paths.block_place(store, name)
    if folder == STACKS:
        _, unique, *snapshot_id = name.rpartition("/")[2].removesuffix(PART).split(".")
        if snapshot_id:
            return paths.snapshot_place(store, key_group, snapshot_id[0])
        return paths.merged_place(store, key_group, unique)
    version, epoch, unique = name.partition(".")[0].rsplit("-", 2)  # the version may be -1
    attempt = f"{epoch}-{unique}"
    if name.endswith(MERGED):
        return paths.merged_delta_place(store, key_group, paths.snapshot_id(int(version), attempt))
    return paths.delta_place(store, key_group, int(version), attempt)
