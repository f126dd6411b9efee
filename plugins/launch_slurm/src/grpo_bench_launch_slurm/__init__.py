"""Runs as jobs of a Slurm cluster: one for each replica, with its own folder and seed, and Ray on its nodes.

The verb ``launch`` (``launch_cli``) plans a profile as any command does, and asks the plan for nodes, GPUs and times.
``form`` makes a :class:`Job` of that and of the site file, ``script`` the batch script of a job, ``submission`` folders
and calls of Slurm, ``records`` what a folder of a launch holds and ``slurm`` what the cluster says of its jobs.
"""
