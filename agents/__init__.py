"""Everything that speaks: the embedded roles, language-model roles, policies."""
