"""Programs that change files in every way, and check that they read back what they wrote. By name of the way."""

from __future__ import annotations

CHANGES = {
    "write": r"""
        open('user.txt', 'w').write('new')
        assert open('user.txt').read() == 'new'
    """,
    "append": r"""
        open('log.txt', 'a').write('line 2\n')
        assert open('log.txt').read() == 'line 1\nline 2\n'
    """,
    "update": r"""
        f = open('best.pt', 'r+b')
        f.seek(5)
        f.write(b'x')
        f.close()
        assert open('best.pt','rb').read()[5:6] == b'x'
    """,
    "os.open": r"""
        import os
        f = os.open('user.txt', os.O_WRONLY | os.O_TRUNC)
        os.write(f, b'x')
        os.close(f)
        assert os.stat('user.txt').st_size == 1
    """,
    "pathlib": r"""
        from pathlib import Path
        Path('user.txt').write_text('p')
        assert Path('user.txt').read_text() == 'p'
        Path('log.txt').unlink()
        assert not Path('log.txt').exists()
    """,
    "absolute": r"""
        import os
        open(os.path.abspath('user.txt'), 'w').write('new')
        assert open('user.txt').read() == 'new'
    """,
    "through a link": r"""
        open('link.txt', 'w').write('new')
        assert open('user.txt').read() == 'new'
    """,
    "through a linked folder": r"""
        open('linked/deep/file.txt', 'w').write('n')
        assert open('sub/deep/file.txt').read() == 'n'
    """,
    "through a parent": r"""
        import os
        os.chdir('sub/deep')
        open('../../user.txt', 'w').write('n')
        assert open('../../user.txt').read() == 'n'
    """,
    "remove": r"""
        import os
        os.remove('user.txt')
        assert not os.path.exists('user.txt')
        assert 'user.txt' not in os.listdir()
        open('user.txt', 'w').write('again')
        assert os.path.getsize('user.txt') == 5
    """,
    "rename": r"""
        import os
        os.rename('user.txt', 'other.txt')
        assert os.listdir().count('other.txt') == 1
        assert not os.path.exists('user.txt')
        assert open('other.txt').read() == 'user\n'
    """,
    "replace across folders": r"""
        import os
        open('sub/new.txt', 'w').write('n')
        os.replace('sub/new.txt', 'user.txt')
        assert open('user.txt').read() == 'n'
        assert not os.path.exists('sub/new.txt')
    """,
    "rename of a folder": r"""
        import shutil
        shutil.move('sub', 'moved')
        assert open('moved/deep/file.txt').read() == 'deep\n'
        import os
        assert not os.path.exists('sub')
    """,
    "remove of a tree": r"""
        import shutil, os
        shutil.rmtree('gone')
        assert not os.path.exists('gone')
        os.mkdir('gone')
        assert os.listdir('gone') == []
        open('gone/b.txt', 'w').write('b')
        assert os.listdir('gone') == ['b.txt']
    """,
    "rmdir": r"""
        import os
        os.remove('gone/a.txt')
        os.rmdir('gone')
        assert not os.path.isdir('gone')
    """,
    "truncate": r"""
        import os
        os.truncate('best.pt', 10)
        assert os.stat('best.pt').st_size == 10
    """,
    "modes and times": r"""
        import os
        os.chmod('mode.txt', 0o600)
        assert os.stat('mode.txt').st_mode & 0o777 == 0o600
        os.utime('mode.txt', (1, 1))
        assert os.stat('mode.txt').st_mtime == 1
    """,
    "new links": r"""
        import os
        os.remove('link.txt')
        os.symlink('log.txt', 'link.txt')
        assert open('link.txt').read() == 'line 1\n'
        assert os.readlink('link.txt') == 'log.txt'
    """,
    "hard links": r"""
        import os
        os.link('user.txt', 'second.txt')
        os.remove('second.txt')
        open('hard.txt', 'w').write('x')
        assert open('hard.txt').read() == 'x'
    """,
    "walk": r"""
        import os
        os.makedirs('sub/new/deeper')
        open('sub/new/deeper/x', 'w').close()
        os.remove('sub/deep/file.txt')
        found = sorted((path, sorted(folders), sorted(files)) for path, folders, files in os.walk('sub'))
        assert found[:2] == [('sub', ['deep', 'new'], []), ('sub/deep', [], [])]
        assert found[2:] == [('sub/new', ['deeper'], []), ('sub/new/deeper', [], ['x'])]
        assert [e.name for e in os.scandir('sub') if e.is_dir() and not e.is_symlink()].count('new') == 1
    """,
    "glob": r"""
        import glob, os
        open('sub/n.txt', 'w').close()
        assert sorted(glob.glob('**/*.txt', root_dir='sub', recursive=True)) == ['deep/file.txt', 'n.txt']
    """,
    "shutil": r"""
        import shutil, os
        shutil.copy('best.pt', 'user.txt')
        assert os.path.getsize('user.txt') == 27000
        shutil.copytree('sub', 'copied')
        assert open('copied/deep/file.txt').read() == 'deep\n'
    """,
    "temporary files": r"""
        import tempfile, os
        f = tempfile.NamedTemporaryFile('w', dir='.', delete=False)
        f.write('x')
        f.close()
        os.replace(f.name, 'user.txt')
        assert open('user.txt').read() == 'x'
        t = tempfile.TemporaryFile(dir='.')
        t.write(b'y')
        t.seek(0)
        assert t.read() == b'y'
        d = tempfile.TemporaryDirectory(dir='.')
        open(d.name + '/z', 'w').close()
        d.cleanup()
        assert not os.path.exists(d.name)
    """,
    "NumPy": r"""
        import numpy as np
        np.save('new.npy', np.arange(5))
        assert np.load('new.npy').tolist() == [0, 1, 2, 3, 4]
        m = np.memmap('best.pt', dtype='u1', mode='r+')
        m[:] = 7
        m.flush()
        assert (np.fromfile('best.pt', 'u1') == 7).all()
        np.zeros(3).tofile('user.txt')
        assert len(open('user.txt', 'rb').read()) == 24
    """,
    "SQLite": r"""
        import sqlite3
        c = sqlite3.connect('data.db')
        c.execute('create table t (x)')
        c.execute('insert into t values (1)')
        c.commit()
        c.close()
        assert sqlite3.connect('data.db').execute('select x from t').fetchall() == [(1,)]
    """,
    "logging": r"""
        import logging
        logging.basicConfig(filename='log.txt')
        logging.error('e')
        logging.shutdown()
        assert 'e' in open('log.txt').read()
    """,
    "process of Python": r"""
        import multiprocessing as m, os
        if os.fork() == 0:
            open('user.txt', 'w').write('child')
            os._exit(0)
        os.wait()
        assert open('user.txt').read() == 'child'
    """,
}

# Of other programs and libraries, which Python's functions do not see.
IN_NAMESPACE = {
    "shell": r"""
        import subprocess
        subprocess.run('echo x > user.txt && rm log.txt && mv sub sub2', shell=True, check=True)
        assert open('user.txt').read() == 'x\n'
    """,
    "C library": r"""
        import ctypes, os
        c = ctypes.CDLL(None)
        f = c.creat(b'user.txt', 0o644)
        assert c.write(f, b'abc', 3) == 3
        c.rename(b'log.txt', b'user2.txt')
        assert os.path.exists('user2.txt')
    """,
    "unnamed file": r"""
        import os
        f = os.open('.', os.O_TMPFILE | os.O_RDWR)
        os.write(f, b'x')
        assert os.pread(f, 1, 0) == b'x'
    """,
    "descriptor of a folder": r"""
        import os
        d = os.open('.', os.O_RDONLY)
        os.unlink('user.txt', dir_fd=d)
        os.mkdir('n', dir_fd=d)
        assert os.path.isdir('n')
    """,
}
