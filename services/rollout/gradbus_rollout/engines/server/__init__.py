"""Parts that engines share whose sampler is a server: another process, reached over HTTP.

slots           samples in flight, and the door that a load closes
version_folder  a version as a folder that a server reads, with its digest
logprob_proof   log-probabilities of a fixed text as the proof of a load
guard           ends a launched server together with its worker
"""
