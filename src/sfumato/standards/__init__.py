"""Records that standards ask for, made from a guarantee and from what people say of it.

``schema`` checks against a pinned JSON schema, ``yaml`` writes YAML, ``people`` reads what only people
know, ``deployment`` makes a record for OpenDP's registry of deployments, ``label`` the page that lies in
a release, ``conformance`` answers the questions of NIST SP 800-226. Nothing here sees data or a model's
numbers.
"""
