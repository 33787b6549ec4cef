"""Scripts of the user's, which run unchanged while their steps are measured."""
