"""The rule by which logs in a store are read in pages."""

from hypothesis import given
from hypothesis import strategies as st

from relight.clients.logs import Chunk
from relight.clients.logs_pages import (
    Bounds,
    Page,
    Place,
    Row,
    advance,
    backwards,
    from_cursor,
    place_at,
    to_cursor,
)

BOUNDS = Bounds(late=20, lines=8, size=10_000)
ROWS = st.lists(
    st.builds(Row, st.integers(1, 60), st.sampled_from("ab"), st.sampled_from(["x", "y", "z"]), st.just("")),
    max_size=60,
)


def ask(rows: list[Row], place: Place, limit: int) -> Page:
    found = sorted(row for row in rows if row.at >= place.low)[place.skip :]
    return Page(tuple(found[:limit]), full=len(found) >= limit)


@given(ROWS, st.integers(16, 40))
def test_any_pages_hold_each_line_once(rows: list[Row], limit: int):
    """Wherever pages end, and however many lines share a moment, each line comes once, and the reading ends."""
    place, taken = place_at(0), list[Row]()
    for _ in range(200):
        page = ask(rows, place, limit)
        new, place = advance(place, page, BOUNDS, can_skip=True)
        place = from_cursor(to_cursor(place)) or place_at(0)
        taken += new
        if not page.full:
            break
    assert sorted(taken) == sorted(rows)
    assert [row.at for row in taken] == sorted(row.at for row in taken)


@given(st.lists(ROWS, max_size=6), st.integers(16, 40))
def test_lines_that_arrive_between_reads(batches: list[list[Row]], limit: int):
    """Whatever arrives late, none comes twice, and each comes that the guarantee covers."""
    place, taken, stored, due = place_at(0), list[Row](), list[Row](), list[Row]()
    for batch in batches:
        # The guarantee's two conditions, as they stand with `HttpLogs`.
        crowd = sorted(taken, reverse=True)[: BOUNDS.lines + 1]
        crowded = crowd[-1].at if len(crowd) > BOUNDS.lines else 0
        due += [row for row in batch if row.at >= place.newest - BOUNDS.late and row.at > crowded]
        stored += batch
        for _ in range(200):
            page = ask(stored, place, limit)
            new, place = advance(place, page, BOUNDS, can_skip=True)
            taken += new
            if not page.full:
                break
        else:
            raise AssertionError("no end")
    rest = list(stored)
    for row in taken:
        rest.remove(row)  # raises for what came twice
    for row in due:
        assert taken.count(row) >= due.count(row)


def test_a_store_that_forgets_for_a_moment():
    """Lines that are missing in one answer and there in the next (a part of the store restarted) come once."""
    rows = (Row(5, "a", "x"), Row(6, "a", "y"))
    _, place = advance(place_at(0), Page(rows, full=False), BOUNDS, can_skip=True)
    nothing, place = advance(place, Page((), full=False), BOUNDS, can_skip=True)
    again, _ = advance(place, Page((*rows, Row(7, "a", "z")), full=False), BOUNDS, can_skip=True)
    assert (nothing, again) == ([], [Row(7, "a", "z")])


def test_a_late_line_that_fills_a_page():
    """A page that holds nothing but one long late line does not make the reader forget the younger ones."""
    rows = (Row(5, "a", "x"), Row(6, "a", "y"))
    _, place = advance(place_at(0), Page(rows, full=False), BOUNDS, can_skip=True)
    late = Row(4, "a", "long")
    first, place = advance(place, Page((late,), full=True), BOUNDS, can_skip=True)
    then, _ = advance(place, Page(rows, full=False), BOUNDS, can_skip=True)
    assert (first, place.skip, then) == ([late], 1, [])


@given(ROWS, st.integers(2, 40))
def test_backwards_each_line_once(rows: list[Row], limit: int):
    """From the end to the beginning, each line once unless a moment has more than a page."""
    taken: list[Row] = []
    end = 1000
    for _ in range(200):
        found = sorted(row for row in rows if row.at < end)
        page = Page(tuple(found[-limit:]), full=len(found) >= limit)
        kept, end = backwards(page) if page.rows else ((), 0)
        taken = [*kept, *taken]
        if not page.full:
            break
    crowded = {row.at for row in rows if sum(other.at == row.at for other in rows) >= limit}
    assert [row for row in taken if row.at not in crowded] == sorted(row for row in rows if row.at not in crowded)
    assert len(taken) <= len(rows)


def test_a_store_that_cannot_skip_says_what_it_leaves_out():
    """More lines of one moment than a page, and no way to ask for the rest: a line says so, and reading goes on."""
    rows = [Row(5, "a", str(n)) for n in range(40)] + [Row(6, "a", "next")]
    place = place_at(0)
    new, place = advance(place, ask(rows, place, 16), BOUNDS, can_skip=False)
    assert [row.text for row in new[:16]] == [row.text for row in sorted(rows)[:16]]
    assert new[16].text == "[relight: 16 lines of one moment; if there are more, they are left out here]"
    new, place = advance(place, ask(rows, place, 16), BOUNDS, can_skip=False)
    assert [row.text for row in new] == ["next"]


def test_cursors_are_small():
    """What is stored of a place is bounded, whatever was read."""
    rows = [Row(n, "a", "x") for n in range(5000)]
    _, place = advance(place_at(0), Page(tuple(rows), full=False), Bounds(10**9, 512, 10**6), can_skip=True)
    chunk = Chunk(lines=(), cursor=to_cursor(place))
    assert len(chunk.model_dump_json()) < 5000
    assert place.low == 5000 - 512
