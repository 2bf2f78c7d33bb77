"""What is reported about samplers that are replaced."""

from walle.sampling.sampling import EventLog, Replacement


def test_news_are_kept_until_somebody_listens():
    news, heard = EventLog(), []
    news.report("first")
    news.replaced("sampler-1", 4, "sampler-1 (pid 7) was killed by SIGKILL")
    news.listen(heard.append)
    news.report("last")
    first, replacement, last = heard
    assert (first, last) == ("first", "last")
    assert (replacement.sampler, replacement.round) == ("sampler-1", 4)
    assert replacement.why == "(pid 7) was killed by SIGKILL"
    assert replacement.when.endswith("+00:00")


def test_a_replacement_is_one_line():
    found = Replacement("sampler-1", "now", 4, "(pid 7) exited with 3")
    assert found.line == "sampler-1 (pid 7) exited with 3; a new one repeats round 4"
    assert found._replace(exact=False).line.endswith("the run is not the same bit for bit)")


def test_lanes_that_cannot_continue_are_one_line():
    events, lines = EventLog(), []
    events.listen(lines.append)
    events.started_anew("sampler-1")
    assert lines[0].startswith("sampler-1 starts new episodes: the state of this environment")
