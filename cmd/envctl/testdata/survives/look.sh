# Prints what is left of what make.sh has made, in the order of the table: the kind, ": " and yes or no, or
# refused for a file in $refused.
row() {
	file=$1 kind=$2 && shift 2
	case " $refused " in *" $file "*) echo "$kind: refused" && return ;; esac
	if test "$@" 2>/dev/null; then echo "$kind: yes"; else echo "$kind: no"; fi
}
of() { stat -c "$@" 2>/dev/null; }
# A container here has no git; its repository has the commit as a file.
has_commit() {
	commit=$(cat commit) && rest=${commit#??}
	if command -v git >/dev/null; then git merge-base --is-ancestor "$commit" HEAD 2>/dev/null
	else test -f ".git/objects/${commit%"$rest"}/$rest"; fi
}
row file 'content of a file' "$(cat file)" = content
row run 'executable bit' -x run -a -f run
row private 'mode 600' "$(of %a private)" = 600
row setgid 'set-group-ID and sticky bit of folders' "$(of %a setgid sticky)" = "$(echo 2755; echo 1777)"
row owned 'owner' "$(of %u:%g owned)" = 12:34
row file 'modification time of a file' "$(of %Y file)" = 981173106
row dir 'modification time of a folder' "$(of %Y dir)" = 981173106
row empty 'empty folder' -d empty
row relative 'relative link' "$(readlink relative)" = dir/file
row absolute 'absolute link into the workspace' "$(readlink absolute)" = "$PWD/dir/file"
row outside 'link out of the workspace' "$(readlink outside)" = /etc/passwd
row dangling 'dangling link' "$(readlink dangling)" = nowhere
row one 'hard link (one file with two names)' "$(of %i one)" = "$(of %i other)" -a -f one
row one 'content of both names' "$(cat one other)" = "$(echo one; echo one)"
row sparse 'content of a sparse file' "$(of %s sparse)$(dd if=sparse bs=1 skip=8388607 2>/dev/null)" = 8388608x
row sparse 'holes of a sparse file' "$(of %b sparse)" -lt 1024
row name 'name that is not UTF-8' -f "$(printf 'name\377')"
row fifo 'FIFO' -p fifo
row socket 'socket' -S socket
row bin/tool 'script with the path of the workspace, as in a Python venv' \
	"$(head -n 1 bin/tool && bin/tool)" = "$(echo "#!$PWD/bin/sh"; echo tool)"
row ignored 'file that git ignores' -f ignored
row left-out 'file that `checkpoints.ignore` leaves out' -f left-out/file
row committed 'commit of the agent' "$(has_commit && echo has)" = has
row nested/file 'file of a nested repository' -f nested/file
row nested/.git '`.git` of a nested repository' -f nested/.git/HEAD
