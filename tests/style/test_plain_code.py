"""Limits that keep the source readable in one reading.

They are not aims: most files should be well below them. Where a limit makes code worse, talk about the limit.
"""

import pytest
from source_measures import SourceFile, arguments, body_lines, package_of, read_source

MOST_COMPLEX = 10  # as radon counts it
MOST_ARGUMENTS = 6
MOST_CONSTRUCTOR_ARGUMENTS = 10  # of the balancer, the loader and probes
MOST_POSITIONAL = 2  # of those constructors
MOST_FILE_LINES = 300
MOST_FUNCTION_LINES = 45  # without the docstring

# Per 100 lines of code, and per 100 assigned names. One package may be denser than the whole.
OVERALL = {"comprehensions": 4.0, "conditional expressions": 1.8, "vague names": 0.5}
PER_PACKAGE = {"comprehensions": 5.0, "conditional expressions": 2.4, "vague names": 1.0}

FILES = read_source()
PACKAGES = sorted({package_of(file) for file in FILES})
PROBES = "src/steelyard/probing/"


def _argument_limit(file: SourceFile, line: int) -> int:
    """Return how many arguments the function on this line may take."""
    for class_name, constructor in file.constructors:
        if constructor.lineno == line and (class_name in ("Balancer", "DomainLoader") or file.name.startswith(PROBES)):
            return MOST_CONSTRUCTOR_ARGUMENTS
    return MOST_ARGUMENTS


def _counts(file: SourceFile, measure: str) -> tuple[int, int]:
    """Return how often something occurs in a file, and in how much."""
    if measure == "comprehensions":
        return file.comprehensions, file.code_lines
    if measure == "conditional expressions":
        return file.conditional_expressions, file.code_lines
    return len(file.vague_names), len(file.assigned_names)


def _places(file: SourceFile, measure: str) -> str:
    """Say what a file holds, for a message."""
    if measure == "vague names":
        return f"{file.name}: " + ", ".join(f"{node.id} (line {node.lineno})" for node in file.vague_names)
    count, size = _counts(file, measure)
    return f"{file.name}: {count} in {size}"


def _check_density(files: list[SourceFile], measure: str, limit: float) -> None:
    """Fail, naming the files that hold most, if something occurs more often than the limit allows."""
    counts = [_counts(file, measure) for file in files]
    occurrences, size = (sum(column) for column in zip(*counts, strict=True))
    density = 100 * occurrences / max(size, 1)
    most_first = sorted(files, key=lambda file: _counts(file, measure)[0], reverse=True)
    places = [_places(file, measure) for file in most_first[:15] if _counts(file, measure)[0]]
    rule = f"{density:.2f} {measure} per 100, at most {limit}; most of them are in"
    _fail_with(places if density > limit else [], rule)


def _fail_with(places: list[str], rule: str) -> None:
    if places:
        pytest.fail(f"{rule}:\n" + "\n".join(f"  {place}" for place in places), pytrace=False)


def test_functions_are_not_branchy():
    complexities = {}
    for file in FILES:
        complexities |= file.complexities()
    places = [f"{place} ({number})" for place, number in complexities.items() if number > MOST_COMPLEX]
    _fail_with(places, f"complexity must be at most {MOST_COMPLEX}, as radon counts it")


def test_functions_take_few_arguments():
    places = []
    for file in FILES:
        for function in file.functions:
            count, _ = arguments(function)
            limit = _argument_limit(file, function.lineno)
            if count > limit:
                places.append(f"{file.place(function, function.name)} ({count} of at most {limit})")
    _fail_with(places, "too many arguments")


def test_long_constructors_take_their_arguments_by_name():
    places = []
    for file in FILES:
        for class_name, constructor in file.constructors:
            count, positional = arguments(constructor)
            if count > MOST_ARGUMENTS and positional > MOST_POSITIONAL:
                places.append(f"{file.place(constructor, class_name)} ({positional} by position)")
    _fail_with(places, f"arguments after number {MOST_POSITIONAL} must be keyword-only")


def test_functions_are_short():
    places = []
    for file in FILES:
        for function in file.functions:
            if body_lines(function) > MOST_FUNCTION_LINES:
                places.append(f"{file.place(function, function.name)} ({body_lines(function)})")
    _fail_with(places, f"functions must have at most {MOST_FUNCTION_LINES} lines without their docstring")


def test_files_are_short():
    places = [f"{file.name} ({file.lines})" for file in FILES if file.lines > MOST_FILE_LINES]
    _fail_with(places, f"files must have at most {MOST_FILE_LINES} lines")


@pytest.mark.parametrize("measure", OVERALL)
def test_the_source_is_not_dense(measure):
    _check_density(FILES, measure, OVERALL[measure])


@pytest.mark.parametrize("measure", PER_PACKAGE)
@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_is_much_denser_than_the_whole(package, measure):
    files = [file for file in FILES if package_of(file) == package]
    _check_density(files, measure, PER_PACKAGE[measure])
