"""Parts that all server engines share: engines that sample in another process, reached over HTTP.

slots           bounds the samples in flight; closed during a load
version_folder  a version as a folder that a server reads, with its digest
logprob_proof   log-probabilities of a fixed text as the proof of a load
exit_cause      why a launched server ended, from its log and its cgroup
guard           ends a launched server together with its worker
"""
