# Makes one of each kind in a workspace that has a history, but for the files that the prompt names after make.
set -e
umask 022
echo content >file
echo script >run && chmod 755 run
echo key >private && chmod 600 private
mkdir empty dir && echo content >dir/file
ln -s dir/file relative
ln -s "$PWD/dir/file" absolute
ln -s /etc/passwd outside
ln -s nowhere dangling
echo one >one && ln one other
printf x | dd of=sparse bs=1 seek=8388607 2>/dev/null
echo name >"$(printf 'name\377')"
mkdir setgid sticky && echo x >setgid/f && echo x >sticky/f && chmod 2755 setgid && chmod 1777 sticky
mkfifo fifo
"$make_socket" socket
echo ignored >ignored
mkdir left-out && echo x >left-out/file
mkdir bin && printf '#!/bin/sh\nexec /bin/sh "$@"\n' >bin/sh && chmod 755 bin/sh
printf '#!%s/bin/sh\necho tool\n' "$PWD" >bin/tool && chmod 755 bin/tool
echo owned >owned && { chown 12:34 owned || :; } # only root can
git init -q nested && echo content >nested/file && git -C nested add file
echo committed >committed && git add committed && git commit -q -m agent && git rev-parse HEAD >commit
TZ=UTC touch -d '2001-02-03 04:05:06' file dir
for name in ${0#make}; do rm "$name"; done
