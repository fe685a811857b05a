"""The file that an import means."""

from pathlib import Path

from holdfast.lint.sources.import_paths import ImportPaths

SCRIPTS = ("/repo/scripts", "/repo/scripts")


def find(name, *files):
    return ImportPaths([Path(file) for file in files]).find(name, *SCRIPTS)


def test_a_dotted_name_means_the_only_file_whose_path_ends_with_it():
    assert find("pkg.parts.groups", "/repo/other.py", "/repo/src/pkg/parts/groups.py") == 1


def test_an_ambiguous_or_plain_name_means_none_of_them():
    assert find("pkg.groups", "/repo/a/pkg/groups.py", "/repo/b/pkg/groups.py") is None
    assert find("groups", "/repo/src/pkg/groups.py") is None


def test_a_library_is_no_file_of_the_program():
    assert find("torch.distributed", "/repo/src/torch/distributed.py") is None
