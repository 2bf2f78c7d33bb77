"""What is reported about samplers that are replaced."""

from walle.sampling.sampling import News, Replacement, begins_new_episodes


def test_news_are_kept_until_somebody_listens():
    news, heard = News(), []
    news.say("first")
    news.replaced("sampler-1", 4, "sampler-1 (pid 7) was killed by SIGKILL")
    news.listen(heard.append)
    news.say("last")
    first, replacement, last = heard
    assert (first, last) == ("first", "last")
    assert (replacement.sampler, replacement.round) == ("sampler-1", 4)
    assert replacement.why == "(pid 7) was killed by SIGKILL"
    assert replacement.when.endswith("+00:00")


def test_news_pass_from_one_to_the_other():
    ours, theirs, heard = News(), News(), []
    ours.say("early")
    ours.listen(theirs.tell)
    ours.say("late")
    theirs.listen(heard.append)
    assert heard == ["early", "late"]


def test_a_replacement_is_one_line():
    found = Replacement("sampler-1", "now", 4, "(pid 7) exited with 3")
    assert found.line == "sampler-1 (pid 7) exited with 3; a new one repeats round 4"
    assert found._replace(exact=False).line.endswith("the run is not the same bit for bit)")
    assert begins_new_episodes("sampler-1").startswith("sampler-1 begins new episodes: ")
