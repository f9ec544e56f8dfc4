"""Values that compare and print by code that is written once."""

from attrs import field, frozen

from topoc.dsl.plain import Plain, reader


@frozen(eq=False, repr=False)
class Empty(Plain):
    pass


@frozen(eq=False, repr=False)
class One(Plain):
    x: object


@frozen(eq=False, repr=False)
class Other(Plain):
    x: object


@frozen(eq=False, repr=False)
class Three(Plain):
    x: object
    y: object
    place: object = field(default=None, eq=False, repr=False)


def test_values_are_equal_field_by_field():
    assert Empty() == Empty()
    assert One(1) == One(1)
    assert One(1) != One(2)
    assert Three(1, 2) == Three(1, 2)
    assert Three(1, 2) != Three(1, 3)
    assert Three(1, 2) != Three(3, 2)


def test_a_field_that_does_not_count_does_not_count():
    assert Three(1, 2, place=3) == Three(1, 2, place=4)
    assert hash(Three(1, 2, place=3)) == hash(Three(1, 2, place=4))


def test_values_of_different_classes_differ():
    assert One(1) != Other(1)
    assert One(1) != 1
    assert One((1,)) != One(1)
    assert len({One(1), Other(1), One(1), Three(1, 2), Three(1, 2)}) == 3


def test_values_show_what_counts():
    assert repr(Empty()) == "Empty()"
    assert repr(Three(1, "a", place=3)) == "Three(x=1, y='a')"


def test_a_reader_gives_a_tuple_of_any_length():
    value = Three(1, (2, 3))
    assert reader()(value) == ()
    assert reader("y")(value) == ((2, 3),)
    assert reader("y", "x")(value) == ((2, 3), 1)
